// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::layer {

/// Applies a pruning policy to what a softmax gate chose. Memory is kept between calls. Not
/// thread-safe.
class RoutingPruner {
 public:
  /// `renormalise`: as in kernels::GateOptions; weights of pruned tokens are divided by their sum.
  RoutingPruner(std::shared_ptr<const pruning::LayerPruner> pruner, bool renormalise);

  /// Rewrites ids and weights [T, k], which kernels::topk_gate made of logits [T, E]. Tokens that
  /// the policy leaves alone keep their bits. Returns how many it changed. A token's result depends
  /// on its logits alone.
  std::int64_t apply(const kernels::ConstMatrixView& logits, int top_k, std::span<std::int32_t> ids,
                     std::span<float> weights, const kernels::Execution& execution);

 private:
  bool prune_token(std::int64_t token, std::span<std::int32_t> ids, std::span<float> weights);

  std::shared_ptr<const pruning::LayerPruner> pruner_;
  bool renormalise_;
  std::int64_t num_experts_ = 0;
  std::vector<std::int32_t> all_ids_;  // [T, E] by descending score
  std::vector<float> sorted_scores_;   // [T, E] in that order
  std::vector<float> scores_;          // [T, E] by expert
};

}  // namespace coterie::layer
