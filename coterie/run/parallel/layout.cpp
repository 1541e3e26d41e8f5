// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/parallel/layout.hpp"

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::parallel {
namespace {

constexpr std::array<GroupKind, kNumGroupKinds> kKinds = {
    GroupKind::kWorld,      GroupKind::kStage,         GroupKind::kData,
    GroupKind::kModel,      GroupKind::kExpert,        GroupKind::kExpertShard,
    GroupKind::kExpertData, GroupKind::kExpertHolders, GroupKind::kPipeline,
    GroupKind::kEnds};

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : " ") + std::to_string(rank);
  }
  return text;
}

/// All groups of a kind, by their first rank.
std::vector<std::vector<int>> groups_of(const Layout& layout, GroupKind kind) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::vector<int> members = layout.members(kind, rank);
    if (members.front() == rank) {
      groups.push_back(std::move(members));
    }
  }
  return groups;
}

}  // namespace

const char* name_of(GroupKind kind) noexcept {
  switch (kind) {
    case GroupKind::kWorld: return "world";
    case GroupKind::kStage: return "stage";
    case GroupKind::kData: return "data";
    case GroupKind::kModel: return "model";
    case GroupKind::kExpert: return "expert";
    case GroupKind::kExpertShard: return "expert_shard";
    case GroupKind::kExpertData: return "expert_data";
    case GroupKind::kExpertHolders: return "expert_holders";
    case GroupKind::kPipeline: return "pipeline";
    case GroupKind::kEnds: return "ends";
  }
  return "unknown group";
}

std::string format_options(const LayoutOptions& options) {
  return join_message("data ", options.data, " x model ", options.model, ", expert ",
                      options.expert, " x shard ", options.expert_shard, ", pipeline ",
                      options.pipeline);
}

Json to_json(const LayoutOptions& options) {
  return Json{{"data", options.data},
              {"model", options.model},
              {"expert", options.expert},
              {"expert_shard", options.expert_shard},
              {"pipeline", options.pipeline}};
}

LayoutOptions layout_options_from_json(const Json& json, const std::string& source) {
  const JsonReader reader(json, source);
  if (!json.is_object()) {
    reader.refuse("an object");
  }
  LayoutOptions options;
  const std::array<std::pair<const char*, int*>, 5> members = {
      {{"data", &options.data},
       {"model", &options.model},
       {"expert", &options.expert},
       {"expert_shard", &options.expert_shard},
       {"pipeline", &options.pipeline}}};
  for (const auto& [key, value] : json.items()) {
    const auto known =
        std::ranges::find_if(members, [&](const auto& member) { return key == member.first; });
    COTERIE_REQUIRE(known != members.end(), source, ": /", key, ": no axis of a layout; data, ",
                    "model, expert, expert_shard and pipeline are");
    *known->second = static_cast<int>(reader.at(key).as_int(1, 1 << 20));
  }
  return options;
}

Layout::Layout(const LayoutOptions& options) : options_(options) {
  for (const auto& [name, size] :
       {std::pair{"data", options.data}, std::pair{"model", options.model},
        std::pair{"expert", options.expert}, std::pair{"expert_shard", options.expert_shard},
        std::pair{"pipeline", options.pipeline}}) {
    COTERIE_REQUIRE(size >= 1, "layout: ", name, " = ", size, " must be at least 1");
  }
  const int holders = options.expert * options.expert_shard;
  COTERIE_REQUIRE(stage_size() % holders == 0, "layout: expert = ", options.expert,
                  " times expert_shard = ", options.expert_shard, " is ", holders,
                  ", which does not divide data = ", options.data, " times model = ", options.model,
                  " (", stage_size(), " ranks a stage)");
}

Coordinates Layout::coordinates(int rank) const {
  COTERIE_CHECK(rank >= 0 && rank < world_size(), "rank ", rank, " of ", world_size());
  const int place = rank % stage_size();
  Coordinates at;
  at.rank = rank;
  at.pipeline = rank / stage_size();
  at.data = place / options_.model;
  at.model = place % options_.model;
  at.expert_shard = place % options_.expert_shard;
  at.expert = place / options_.expert_shard % options_.expert;
  at.expert_data = place / (options_.expert_shard * options_.expert);
  return at;
}

int Layout::group_of(GroupKind kind, int rank) const {
  const Coordinates at = coordinates(rank);
  const int holders = options_.expert * options_.expert_shard;
  const int stage_begin = at.pipeline * stage_size();
  switch (kind) {
    case GroupKind::kWorld: return 0;
    case GroupKind::kStage: return at.pipeline;
    case GroupKind::kData: return at.pipeline * options_.model + at.model;
    case GroupKind::kModel: return at.pipeline * options_.data + at.data;
    case GroupKind::kExpert:
      return stage_begin + at.expert_data * options_.expert_shard + at.expert_shard;
    case GroupKind::kExpertShard: return stage_begin + at.expert_data * options_.expert + at.expert;
    case GroupKind::kExpertData:
      return at.pipeline * holders + at.expert * options_.expert_shard + at.expert_shard;
    case GroupKind::kExpertHolders: return at.pipeline * options_.expert + at.expert;
    case GroupKind::kPipeline: return rank % stage_size();
    case GroupKind::kEnds: return at.pipeline == options_.pipeline - 1 ? 0 : at.pipeline;
  }
  return 0;
}

std::vector<int> Layout::members(GroupKind kind, int rank) const {
  const int group = group_of(kind, rank);
  std::vector<int> members;
  for (int other = 0; other < world_size(); ++other) {
    if (group_of(kind, other) == group) {
      members.push_back(other);
    }
  }
  return members;
}

int Layout::size_of(GroupKind kind) const {
  return static_cast<int>(members(kind, 0).size());
}

std::vector<int> Layout::stage_of_layers(std::int64_t num_layers) const {
  COTERIE_REQUIRE(num_layers >= options_.pipeline, "layout: pipeline = ", options_.pipeline,
                  " stages for ", num_layers, " layers");
  std::vector<int> stages;
  for (int stage = 0; stage < options_.pipeline; ++stage) {
    stages.insert(stages.end(),
                  static_cast<std::size_t>(share_of(num_layers, options_.pipeline, stage).size()),
                  stage);
  }
  return stages;
}

std::string Layout::table() const {
  std::ostringstream out;
  out << format_options(options_) << ": " << world_size() << " ranks, " << expert_data()
      << (expert_data() == 1 ? " copy" : " copies") << " of the experts\n\n";
  out << "rank  stage  data  model  copy  expert  shard\n";
  for (int rank = 0; rank < world_size(); ++rank) {
    const Coordinates at = coordinates(rank);
    out << std::setw(4) << at.rank << std::setw(7) << at.pipeline << std::setw(6) << at.data
        << std::setw(7) << at.model << std::setw(6) << at.expert_data << std::setw(8) << at.expert
        << std::setw(7) << at.expert_shard << "\n";
  }
  out << "\ngroup           size  members\n";
  for (const GroupKind kind : kKinds) {
    out << std::left << std::setw(16) << name_of(kind) << std::right << std::setw(4)
        << size_of(kind) << "  ";
    std::string separator;
    for (const std::vector<int>& group : groups_of(*this, kind)) {
      out << separator << list_of(group);
      separator = " | ";
    }
    out << "\n";
  }
  return out.str();
}

Json Layout::to_json() const {
  Json ranks = Json::array();
  for (int rank = 0; rank < world_size(); ++rank) {
    const Coordinates at = coordinates(rank);
    ranks.push_back(Json{{"rank", at.rank},
                         {"pipeline", at.pipeline},
                         {"data", at.data},
                         {"model", at.model},
                         {"expert_data", at.expert_data},
                         {"expert", at.expert},
                         {"expert_shard", at.expert_shard}});
  }
  Json groups = Json::object();
  for (const GroupKind kind : kKinds) {
    groups[name_of(kind)] = groups_of(*this, kind);
  }
  return Json{{"sizes", parallel::to_json(options_)}, {"ranks", ranks}, {"groups", groups}};
}

Share share_of(std::int64_t count, int num_parts, int index) {
  const std::int64_t base = count / num_parts;
  const std::int64_t larger = count % num_parts;  // parts with one more
  const std::int64_t begin = index * base + std::min<std::int64_t>(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

Share equal_share_of(std::int64_t count, int num_parts, int index, const std::string& what,
                     const std::string& axis) {
  COTERIE_REQUIRE(count % num_parts == 0, what, " = ", count, " does not divide by ", axis, " = ",
                  num_parts);
  return share_of(count, num_parts, index);
}

}  // namespace coterie::parallel
