// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/matrix.hpp"
#include "coterie/plan/routing/import_part.hpp"
#include "coterie/plan/routing/text_lines.hpp"

namespace coterie::routing {
namespace {

std::vector<std::string_view> split_fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) {
      return fields;
    }
    line.remove_prefix(comma + 1);
  }
}

/// Reads a CSV of whole numbers, line by line.
class NumberTable {
 public:
  NumberTable(std::string_view text, std::string file)
      : lines_(text, std::move(file)), columns_(split_fields(lines_.next().value_or(""))) {}

  [[nodiscard]] std::string place() const { return lines_.place(); }
  [[nodiscard]] std::size_t num_columns() const { return columns_.size(); }

  /// Refuses columns other than `first`..., then prefix0, prefix1, ....
  void require_columns(const std::vector<std::string>& first, const std::string& prefix) const {
    COTERIE_REQUIRE(columns_.size() > first.size(), place(), ": ", columns_.size(),
                    " columns; expected ", first[0], ",", first[1], ",", prefix, "0,...");
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string expected =
          c < first.size() ? first[c] : prefix + std::to_string(c - first.size());
      COTERIE_REQUIRE(columns_[c] == expected, place(), ": column ", c + 1, " is \"", columns_[c],
                      "\", expected \"", expected, "\"");
    }
  }

  /// The numbers of the next row; false at the end.
  bool next(std::vector<std::int64_t>& numbers) {
    const auto line = lines_.next();
    if (!line) {
      return false;
    }
    const auto fields = split_fields(*line);
    COTERIE_REQUIRE(fields.size() == columns_.size(), place(), ": ", fields.size(),
                    " fields in a table of ", columns_.size(), " columns");
    numbers.resize(fields.size());
    for (std::size_t c = 0; c < fields.size(); ++c) {
      const char* end = fields[c].data() + fields[c].size();
      const auto result = std::from_chars(fields[c].data(), end, numbers[c]);
      COTERIE_REQUIRE(result.ec == std::errc() && result.ptr == end, place(), ": column ",
                      columns_[c], ": expected a whole number, found \"", fields[c], "\"");
    }
    return true;
  }

 private:
  LineReader lines_;
  std::vector<std::string_view> columns_;
};

/// Parts of a name `*_{domain}_layer{N}`; without that form the whole stem is the domain.
struct NameParts {
  std::string domain;
  std::int32_t layer = 0;
};

NameParts parts_of_name(const std::string& stem) {
  const std::size_t mark = stem.rfind("_layer");
  if (mark == std::string::npos) {
    return {stem, 0};
  }
  std::int32_t layer = 0;
  const char* end = stem.data() + stem.size();
  const auto result = std::from_chars(stem.data() + mark + 6, end, layer);
  if (result.ec != std::errc() || result.ptr != end || layer < 0) {
    return {stem, 0};
  }
  const std::string before = stem.substr(0, mark);
  const std::size_t underscore = before.rfind('_');
  return {underscore == std::string::npos ? before : before.substr(underscore + 1), layer};
}

}  // namespace

ImportedPart import_sets_csv(const std::filesystem::path& path, std::string_view text,
                             const ImportOptions& options) {
  NumberTable table(text, path.string());
  table.require_columns({"token_id", "occurrences"}, "x");
  const std::size_t width = table.num_columns() - 2;
  const NameParts name = parts_of_name(path.stem().string());
  const std::int32_t limit = options.num_experts > 0 ? options.num_experts : kNoExpert - 1;

  LayerTrace layer;
  layer.layer = options.layer_from_name ? name.layer : 0;
  layer.top_k = static_cast<std::int32_t>(width);
  std::vector<TokenInfo> tokens;
  std::int32_t highest = -1;
  std::vector<std::int64_t> numbers;
  while (table.next(numbers)) {
    for (std::size_t i = 2; i < numbers.size(); ++i) {
      COTERIE_REQUIRE(numbers[i] >= 0 && numbers[i] < limit, table.place(), ": expert id ",
                      numbers[i], " is not in [0, ", limit, ")");
      layer.ids.push_back(static_cast<std::uint16_t>(numbers[i]));
      highest = std::max(highest, static_cast<std::int32_t>(numbers[i]));
    }
    check_rows(std::span<const std::uint16_t>(layer.ids).last(width), layer.top_k, limit,
               table.place() + ": ");
    tokens.push_back({0, static_cast<std::uint32_t>(tokens.size()), 0, 0});
  }
  COTERIE_REQUIRE(!tokens.empty(), path.string(), ": the table has no rows");
  layer.tokens = std::make_shared<const std::vector<TokenInfo>>(std::move(tokens));

  ImportedPart part;
  part.header.num_experts = options.num_experts;
  part.header.top_k = layer.top_k;
  part.header.layers = {layer.layer};
  part.header.domains = {name.domain};
  part.header.source = path.filename().string();
  part.header.shared_tokens = false;
  part.layers.push_back(std::move(layer));
  part.highest_id = highest;
  part.name = path.string();
  return part;
}

namespace {

/// One layer's square of counts; rows may come in any order.
struct PairTable {
  Matrix<std::int64_t> counts;
  std::vector<std::uint64_t> line_of_row;  ///< 0: not there yet
};

ExpertSets sets_of_pairs(const PairTable& table, const std::string& where) {
  ExpertSets sets;
  const std::size_t num_experts = table.counts.rows();
  sets.num_experts = static_cast<std::int32_t>(num_experts);
  for (std::size_t i = 0; i < num_experts; ++i) {
    COTERIE_REQUIRE(table.line_of_row[i] != 0, where, "the row of expert ", i, " is missing");
  }
  for (std::size_t i = 0; i < num_experts; ++i) {
    for (std::size_t j = i + 1; j < num_experts; ++j) {
      const std::int64_t count = table.counts(i, j);
      COTERIE_REQUIRE(count == table.counts(j, i), where, "experts ", i, " and ", j, " met ", count,
                      " times in one row and ", table.counts(j, i), " in the other");
      if (count > 0) {
        sets.experts.push_back(static_cast<std::uint16_t>(i));
        sets.experts.push_back(static_cast<std::uint16_t>(j));
        sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
        sets.tokens.push_back(static_cast<std::uint32_t>(count));
      }
    }
  }
  return sets;
}

}  // namespace

ImportedPart import_coactivation_csv(const std::filesystem::path& path, std::string_view text,
                                     const ImportOptions& options) {
  NumberTable table(text, path.string());
  table.require_columns({"layer", "expert"}, "e");
  const std::size_t num_experts = table.num_columns() - 2;
  COTERIE_REQUIRE(num_experts >= 2 && num_experts < kNoExpert, table.place(), ": counts of ",
                  num_experts, " experts");
  COTERIE_REQUIRE(options.num_experts == 0 || std::cmp_equal(options.num_experts, num_experts),
                  table.place(), ": counts of ", num_experts, " experts, not of ",
                  options.num_experts);
  std::map<std::int32_t, PairTable> layers;
  std::vector<std::int64_t> numbers;
  std::uint64_t row_number = 0;
  while (table.next(numbers)) {
    ++row_number;
    COTERIE_REQUIRE(numbers[0] >= 0 && numbers[0] <= std::numeric_limits<std::int32_t>::max(),
                    table.place(), ": layer ", numbers[0]);
    COTERIE_REQUIRE(numbers[1] >= 0 && std::cmp_less(numbers[1], num_experts), table.place(),
                    ": expert id ", numbers[1], " is not in [0, ", num_experts, ")");
    PairTable& layer = layers[static_cast<std::int32_t>(numbers[0])];
    if (layer.line_of_row.empty()) {
      layer.counts = Matrix<std::int64_t>(num_experts, num_experts);
      layer.line_of_row.resize(num_experts);
    }
    const auto expert = static_cast<std::size_t>(numbers[1]);
    COTERIE_REQUIRE(layer.line_of_row[expert] == 0, table.place(), ": layer ", numbers[0],
                    ", expert ", expert, " stands in a second row");
    layer.line_of_row[expert] = row_number;
    for (std::size_t e = 0; e < num_experts; ++e) {
      COTERIE_REQUIRE(
          numbers[e + 2] >= 0 && numbers[e + 2] <= std::numeric_limits<std::uint32_t>::max(),
          table.place(), ": column e", e, ": a count of ", numbers[e + 2]);
      layer.counts(expert, e) = numbers[e + 2];
    }
  }
  COTERIE_REQUIRE(!layers.empty(), path.string(), ": the table has no rows");

  ImportedPart part;
  part.header.num_experts = static_cast<std::int32_t>(num_experts);
  part.header.top_k = 2;
  part.header.domains = {path.stem().string()};
  part.header.source = path.filename().string();
  part.header.shared_tokens = false;
  for (const auto& [number, pairs] : layers) {
    LayerTrace layer;
    layer.layer = number;
    layer.num_experts = part.header.num_experts;
    layer.top_k = 2;
    layer.counts = sets_of_pairs(pairs, path.string() + ": layer " + std::to_string(number) + ": ");
    part.header.layers.push_back(number);
    part.layers.push_back(std::move(layer));
  }
  part.highest_id = part.header.num_experts - 1;
  part.name = path.string();
  return part;
}

}  // namespace coterie::routing
