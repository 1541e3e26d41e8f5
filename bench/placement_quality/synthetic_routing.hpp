// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/random.hpp"

namespace coterie::bench {

/// Routing with structure: E/4 topics in Zipf frequency, each with its own distribution over
/// experts (Dirichlet; a small alpha makes topics sharp), and a tenth of all choices uniform. A
/// token draws its topic, then top_k experts without replacement.
class SyntheticRouting {
 public:
  SyntheticRouting(std::int32_t num_experts, std::int32_t top_k, double alpha, std::uint64_t seed);

  /// Appends the ids of `num_tokens` tokens.
  void draw(std::size_t num_tokens, std::vector<std::uint16_t>& ids);

 private:
  std::uint16_t draw_expert(std::size_t topic);

  std::int32_t num_experts_;
  std::int32_t top_k_;
  Random random_;
  std::vector<double> topic_sums_;                ///< running sums over topics
  std::vector<std::vector<double>> expert_sums_;  ///< running sums over experts, a topic
};

}  // namespace coterie::bench
