// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/parallel/reduce_table.hpp"

#include <algorithm>
#include <cctype>
#include <iomanip>
#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::parallel {
namespace {

/// The name with its first number cut out: before, number, after.
struct CutName {
  std::string before;
  std::string number;
  std::string after;
};

CutName cut_name(const std::string& name) {
  const auto begin = std::ranges::find_if(name, [](unsigned char c) { return std::isdigit(c); });
  const auto is_own = begin != name.end() && begin != name.begin() && *(begin - 1) == '.';
  if (!is_own) {
    return {name, "", ""};
  }
  const auto end =
      std::find_if(begin, name.end(), [](unsigned char c) { return !std::isdigit(c); });
  return {std::string(name.begin(), begin), std::string(begin, end), std::string(end, name.end())};
}

std::string format_dimensions(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

/// Entries that a line stands for.
struct Line {
  CutName name;
  std::string last_number;
  ReduceEntry entry;

  [[nodiscard]] bool takes(const CutName& other, const ReduceEntry& next) const {
    return !name.number.empty() && !other.number.empty() && other.before == name.before &&
           other.after == name.after && next.kind == entry.kind && next.group == entry.group &&
           next.local_shape == entry.local_shape;
  }
  [[nodiscard]] std::string text() const {
    return name.number == last_number
               ? entry.parameter
               : name.before + "{" + name.number + ".." + last_number + "}" + name.after;
  }
};

}  // namespace

const char* name_of(ParameterKind kind) noexcept {
  switch (kind) {
    case ParameterKind::kReplicated: return "replicated";
    case ParameterKind::kTiedEmbedding: return "tied_embedding";
    case ParameterKind::kHeadShard: return "head_shard";
    case ParameterKind::kGate: return "gate";
    case ParameterKind::kExpert: return "expert";
    case ParameterKind::kExpertBias: return "expert_bias";
  }
  return "unknown parameter";
}

GroupKind reduce_group(ParameterKind kind) noexcept {
  switch (kind) {
    case ParameterKind::kReplicated:
    case ParameterKind::kGate: return GroupKind::kStage;
    case ParameterKind::kTiedEmbedding: return GroupKind::kEnds;
    case ParameterKind::kHeadShard: return GroupKind::kData;
    case ParameterKind::kExpert: return GroupKind::kExpertData;
    case ParameterKind::kExpertBias: return GroupKind::kExpertHolders;
  }
  return GroupKind::kStage;
}

ReduceEntry reduce_entry(const std::string& parameter, ParameterKind kind,
                         std::vector<std::int64_t> local_shape, const Layout& layout) {
  const GroupKind group = reduce_group(kind);
  return {parameter, kind, group, layout.size_of(group), 1.0, std::move(local_shape)};
}

std::string format_table(const ReduceTable& table) {
  std::vector<Line> lines;
  for (const ReduceEntry& entry : table) {
    const CutName name = cut_name(entry.parameter);
    const auto fits =
        std::ranges::find_if(lines, [&](const Line& line) { return line.takes(name, entry); });
    if (fits != lines.end()) {
      fits->last_number = name.number;
    } else {
      lines.push_back({name, name.number, entry});
    }
  }
  std::size_t width = 9;
  for (const Line& line : lines) {
    width = std::max(width, line.text().size());
  }
  std::ostringstream out;
  out << std::left << std::setw(static_cast<int>(width)) << "parameter"
      << "  kind            summed over  ranks  scale  shape here\n";
  for (const Line& line : lines) {
    out << std::left << std::setw(static_cast<int>(width)) << line.text() << "  " << std::setw(14)
        << name_of(line.entry.kind) << "  " << std::setw(11) << name_of(line.entry.group)
        << std::right << std::setw(7) << line.entry.group_size << std::setw(7) << line.entry.scale
        << "  " << format_dimensions(line.entry.local_shape) << "\n";
  }
  return out.str();
}

Json to_json(const ReduceTable& table) {
  Json list = Json::array();
  for (const ReduceEntry& entry : table) {
    list.push_back(Json{{"parameter", entry.parameter},
                        {"kind", name_of(entry.kind)},
                        {"group", name_of(entry.group)},
                        {"group_size", entry.group_size},
                        {"scale", entry.scale},
                        {"local_shape", entry.local_shape}});
  }
  return list;
}

}  // namespace coterie::parallel
