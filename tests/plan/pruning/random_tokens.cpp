// SPDX-License-Identifier: Apache-2.0
#include "tests/plan/pruning/random_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace coterie::pruning::testing {

Token random_token(Random& random, std::int32_t num_experts, std::int32_t top_k,
                   std::int32_t num_levels) {
  Token token;
  double sum = 0;
  for (std::int32_t e = 0; e < num_experts; ++e) {
    const double score =
        num_levels > 0
            ? 1.0 + static_cast<double>(random.below(static_cast<std::uint64_t>(num_levels)))
            : std::exp(2 * random.normal());
    token.scores.push_back(static_cast<float>(score));
    sum += score;
  }
  for (float& score : token.scores) {
    score = static_cast<float>(static_cast<double>(score) / sum);
  }
  std::vector<std::int32_t> order(token.scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return token.scores[static_cast<std::size_t>(a)] > token.scores[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(top_k));
  token.ids = order;
  for (const std::int32_t id : order) {
    token.weights.push_back(token.scores[static_cast<std::size_t>(id)]);
  }
  return token;
}

placement::LayerPlacement random_placement(Random& random, std::int32_t num_experts,
                                           std::int32_t num_devices, std::int32_t num_copies) {
  std::vector<std::int32_t> experts(static_cast<std::size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  random.shuffle(std::span(experts));
  placement::LayerPlacement placement;
  placement.num_experts = num_experts;
  placement.experts_of_device.resize(static_cast<std::size_t>(num_devices));
  for (std::size_t i = 0; i < experts.size(); ++i) {
    placement.experts_of_device[i % static_cast<std::size_t>(num_devices)].push_back(experts[i]);
  }
  for (std::int32_t i = 0; i < num_copies; ++i) {
    auto& device = placement.experts_of_device[static_cast<std::size_t>(
        random.below(static_cast<std::uint64_t>(num_devices)))];
    const auto expert =
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_experts)));
    if (std::find(device.begin(), device.end(), expert) == device.end()) {
      device.push_back(expert);
    }
  }
  for (auto& device : placement.experts_of_device) {
    std::sort(device.begin(), device.end());
  }
  return placement;
}

}  // namespace coterie::pruning::testing
