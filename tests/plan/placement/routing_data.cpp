// SPDX-License-Identifier: Apache-2.0
#include "tests/plan/placement/routing_data.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "tests/folders.hpp"

namespace coterie::placement::testing {
namespace {

/// Data rows of a CSV file of whole numbers; the header is left out.
std::vector<std::vector<std::int64_t>> read_csv(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) {
    throw std::runtime_error("cannot read " + path.string());
  }
  std::vector<std::vector<std::int64_t>> rows;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::vector<std::int64_t> row;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) {
      row.push_back(std::stoll(cell));
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

routing::ExpertSets random_sets(Random& random, std::int32_t num_experts, std::int32_t top_k,
                                std::size_t num_tokens) {
  const auto experts = static_cast<std::size_t>(num_experts);
  const std::size_t num_topics = std::max<std::size_t>(2, experts / 4);
  std::vector<std::vector<double>> weight(num_topics, std::vector<double>(experts));
  for (auto& topic : weight) {
    for (double& w : topic) {
      w = std::exp(1.5 * random.normal());
    }
  }
  std::vector<std::uint16_t> ids;
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto& topic = weight[random.below(num_topics)];
    std::vector<std::pair<double, std::uint16_t>> keys;
    for (std::size_t e = 0; e < experts; ++e) {
      const double exponential = -std::log(1.0 - random.uniform());
      keys.emplace_back(exponential / topic[e], static_cast<std::uint16_t>(e));
    }
    std::sort(keys.begin(), keys.end());
    for (std::int32_t i = 0; i < top_k; ++i) {
      ids.push_back(keys[static_cast<std::size_t>(i)].second);
    }
  }
  return routing::make_expert_sets(ids, top_k, num_experts);
}

LayerPlacement random_placement(Random& random, std::int32_t num_experts,
                                std::int32_t num_devices) {
  routing::ExpertSets empty;
  empty.num_experts = num_experts;
  PlacementOptions options;
  options.num_devices = num_devices;
  options.seed = random.next();
  return place_layer(empty, "random", options);
}

std::uint64_t count_rows(const routing::ExpertSets& sets,
                         const std::vector<std::int32_t>& device_of) {
  std::uint64_t rows = 0;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    std::set<std::int32_t> devices;
    for (const std::uint16_t e : sets.set(s)) {
      devices.insert(device_of[e]);
    }
    rows += sets.tokens[s] * devices.size();
  }
  return rows;
}

std::filesystem::path real_data_folder() {
  std::filesystem::path folder = tests::shared_dir() / "data" / "routing";
  return std::filesystem::is_directory(folder) ? folder : std::filesystem::path();
}

std::pair<routing::ExpertSets, routing::ExpertSets> read_olmoe_halves(std::int32_t layer) {
  std::vector<std::uint16_t> halves[2];
  for (const char* domain : {"arxiv", "book", "github", "wikipedia"}) {
    const auto rows = read_csv(real_data_folder() / ("olmoe-1b-7b_" + std::string(domain) +
                                                     "_layer" + std::to_string(layer) + ".csv"));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t i = 2; i < rows[r].size(); ++i) {
        halves[r % 2].push_back(static_cast<std::uint16_t>(rows[r][i]));
      }
    }
  }
  return {routing::make_expert_sets(halves[0], 8, 64), routing::make_expert_sets(halves[1], 8, 64)};
}

std::vector<routing::ExpertSets> read_llama_moe() {
  std::vector<routing::ExpertSets> layers;
  for (const auto& row : read_csv(real_data_folder() / "llama-moe-3.5b_coactivation.csv")) {
    if (static_cast<std::size_t>(row[0]) == layers.size()) {
      layers.emplace_back().num_experts = 8;
    }
    routing::ExpertSets& sets = layers.back();
    for (auto other = static_cast<std::size_t>(row[1]) + 1; other < 8; ++other) {
      if (const std::int64_t count = row[2 + other]; count > 0) {
        sets.experts.push_back(static_cast<std::uint16_t>(row[1]));
        sets.experts.push_back(static_cast<std::uint16_t>(other));
        sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
        sets.tokens.push_back(static_cast<std::uint32_t>(count));
      }
    }
  }
  return layers;
}

}  // namespace coterie::placement::testing
