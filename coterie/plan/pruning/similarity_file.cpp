// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/similarity_file.hpp"

#include <cmath>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::pruning {
namespace {

constexpr const char* kFormat = "coterie-similarity";
constexpr double kRounding = 1e-9;

void check_table(const SimilarityTable& table, std::size_t num_experts, const std::string& where) {
  COTERIE_REQUIRE(table.rows() == num_experts && table.columns() == num_experts && num_experts > 0,
                  where, ": the table is [", table.rows(), ", ", table.columns(), "], not [",
                  num_experts, ", ", num_experts, "]");
  for (std::size_t i = 0; i < num_experts; ++i) {
    for (std::size_t j = 0; j < num_experts; ++j) {
      COTERIE_REQUIRE(std::abs(table(i, j)) <= 1 + kRounding, where, ": experts ", i, " and ", j,
                      ": similarity ", table(i, j), " is not in [-1, 1]");
      COTERIE_REQUIRE(std::abs(table(i, j) - table(j, i)) <= kRounding, where, ": experts ", i,
                      " and ", j, ": ", table(i, j), " one way, ", table(j, i), " the other");
    }
  }
}

SimilarityTable read_table(const JsonReader& rows) {
  const std::size_t num_experts = rows.size();
  SimilarityTable table(num_experts, num_experts);
  for (std::size_t i = 0; i < num_experts; ++i) {
    const JsonReader row = rows.at(i);
    if (row.size() != num_experts) {
      row.refuse(std::to_string(num_experts) + " numbers");
    }
    for (std::size_t j = 0; j < num_experts; ++j) {
      table(i, j) = row.at(j).as_double();
    }
  }
  return table;
}

}  // namespace

void check_similarity(const ModelSimilarity& similarity, const std::string& where) {
  COTERIE_REQUIRE(similarity.tables.size() == similarity.layers.size(), where, ": ",
                  similarity.tables.size(), " tables for ", similarity.layers.size(), " layers");
  COTERIE_REQUIRE(!similarity.layers.empty(), where, ": no layer");
  const std::size_t num_experts = similarity.tables.front().rows();
  for (std::size_t i = 0; i < similarity.layers.size(); ++i) {
    const std::string place = where + ": layer " + std::to_string(similarity.layers[i]);
    COTERIE_REQUIRE(i == 0 || similarity.layers[i] > similarity.layers[i - 1], place,
                    ": layers do not ascend");
    check_table(similarity.tables[i], num_experts, place);
  }
}

void write_similarity(const std::filesystem::path& path, const ModelSimilarity& similarity) {
  check_similarity(similarity, path.string());
  Json tables = Json::array();
  for (const SimilarityTable& table : similarity.tables) {
    Json rows = Json::array();
    for (std::size_t i = 0; i < table.rows(); ++i) {
      const auto row = table.row(i);
      rows.push_back(std::vector<double>(row.begin(), row.end()));
    }
    tables.push_back(std::move(rows));
  }
  write_json_file(path, {{"format", kFormat},
                         {"version", 1},
                         {"model_fingerprint", similarity.model_fingerprint},
                         {"measure", name_of(similarity.measure)},
                         {"values", similarity.values},
                         {"num_tokens", similarity.num_tokens},
                         {"layers", similarity.layers},
                         {"tables", std::move(tables)}});
}

ModelSimilarity read_similarity(const std::filesystem::path& path) {
  const Json document = read_json_file(path);
  const JsonReader file(document, path.string());
  if (file.at("format").as_string() != kFormat) {
    file.at("format").refuse(std::string("\"") + kFormat + "\"");
  }
  if (file.at("version").as_int(1) > 1) {
    file.at("version").refuse("version 1: a newer program wrote this file");
  }
  ModelSimilarity similarity;
  similarity.model_fingerprint = file.at("model_fingerprint").as_string();
  similarity.measure = measure_of(file.at("measure").as_string());
  similarity.values = file.at("values").as_string();
  similarity.num_tokens = static_cast<std::uint64_t>(file.at("num_tokens").as_int(0));
  for (const std::int64_t layer :
       file.at("layers").as_ints(0, std::numeric_limits<std::int32_t>::max())) {
    similarity.layers.push_back(static_cast<std::int32_t>(layer));
  }
  const JsonReader tables = file.at("tables");
  for (std::size_t i = 0; i < tables.size(); ++i) {
    similarity.tables.push_back(read_table(tables.at(i)));
  }
  check_similarity(similarity, path.string());
  return similarity;
}

}  // namespace coterie::pruning
