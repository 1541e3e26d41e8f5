// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/plan/pruning/pruning.hpp"

namespace coterie::pruning::testing {

/// A token with the scores of all experts (softmax of random logits) and its top-k.
struct Token {
  std::vector<float> scores;      // [E]
  std::vector<std::int32_t> ids;  // [k] by descending score
  std::vector<float> weights;     // [k]

  [[nodiscard]] Picks picks() const { return {ids, weights}; }
};

/// `num_levels` > 0 draws scores out of so few values that ties abound.
Token random_token(Random& random, std::int32_t num_experts, std::int32_t top_k,
                   std::int32_t num_levels = 0);

/// Experts dealt at random; `num_copies` further copies on random devices.
placement::LayerPlacement random_placement(Random& random, std::int32_t num_experts,
                                           std::int32_t num_devices, std::int32_t num_copies = 0);

}  // namespace coterie::pruning::testing
