// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/models/model_config.hpp"
#include "coterie/plan/pruning/pruning.hpp"

namespace coterie::models {

/// Chooses experts by the router of a config: scores (DeepSeek-V3, arXiv:2412.19437,
/// section 2.1.2), groups, correction bias, renormalising, scaling. Sums are fp32 in descending
/// rank. Ties go to the lowest expert and group. Thread-safe.
class Router {
 public:
  /// `bias` [E], or empty without a correction bias; copied.
  Router(const ModelConfig& config, std::span<const float> bias);

  /// logits [E] of one token -> ids and weights [top_k], by descending rank. False, with ids -1 and
  /// weights 0, if a logit is NaN or +inf or all are -inf.
  bool choose(std::span<const float> logits, std::span<std::int32_t> ids,
              std::span<float> weights) const;

  /// Lets `pruner` change what choose() gave; returns whether it did.
  bool prune(const pruning::LayerPruner& pruner, std::span<const float> logits,
             std::span<std::int32_t> ids, std::span<float> weights) const;

 private:
  struct Scores {
    std::vector<float> weights;  // [E] what a pick weighs
    std::vector<float> ranks;    // [E] what it is chosen by; -inf: not allowed
  };
  bool score(std::span<const float> logits, Scores& scores) const;
  void close_groups(Scores& scores) const;
  void finish(std::span<float> weights) const;

  std::int64_t num_experts_;
  RouterOptions options_;
  bool renormalise_;
  std::vector<float> bias_;
};

}  // namespace coterie::models
