// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/routing_pruner.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::layer {

RoutingPruner::RoutingPruner(std::shared_ptr<const pruning::LayerPruner> pruner, bool renormalise)
    : pruner_(std::move(pruner)), renormalise_(renormalise) {
  COTERIE_CHECK(pruner_ != nullptr, "no policy");
}

std::int64_t RoutingPruner::apply(const kernels::ConstMatrixView& logits, int top_k,
                                  std::span<std::int32_t> ids, std::span<float> weights,
                                  const kernels::Execution& execution) {
  constexpr std::int64_t kBlock = 64;  // tokens a task
  const auto num_scores = static_cast<std::size_t>(logits.rows * logits.columns);
  num_experts_ = logits.columns;
  all_ids_.resize(num_scores);
  sorted_scores_.resize(num_scores);
  scores_.resize(num_scores);
  // The gate itself, asked for all experts: the scores have the bits that it gave the picks.
  kernels::topk_gate(logits, {static_cast<int>(logits.columns), false}, all_ids_, sorted_scores_,
                     execution);
  std::atomic<std::int64_t> num_changed = 0;
  const auto width = static_cast<std::size_t>(top_k);
  execution.pool().run((logits.rows + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t end = std::min(logits.rows, (block + 1) * kBlock);
    for (std::int64_t token = block * kBlock; token < end; ++token) {
      const auto pick = static_cast<std::size_t>(token) * width;
      num_changed += prune_token(token, ids.subspan(pick, width), weights.subspan(pick, width));
    }
  });
  return num_changed;
}

bool RoutingPruner::prune_token(std::int64_t token, std::span<std::int32_t> ids,
                                std::span<float> weights) {
  const auto num_experts = static_cast<std::size_t>(num_experts_);
  const auto first = static_cast<std::size_t>(token) * num_experts;
  if (ids.empty() || ids[0] < 0) {
    return false;  // a token with bad logits has no experts
  }
  const std::span<float> scores = std::span(scores_).subspan(first, num_experts);
  for (std::size_t i = 0; i < num_experts; ++i) {
    scores[static_cast<std::size_t>(all_ids_[first + i])] = sorted_scores_[first + i];
  }
  std::vector<std::int32_t> new_ids(ids.begin(), ids.end());
  std::vector<float> new_weights(ids.size());
  std::copy_n(sorted_scores_.begin() + static_cast<std::ptrdiff_t>(first), ids.size(),
              new_weights.begin());
  if (!pruner_->prune({scores, scores}, new_ids, new_weights)) {
    return false;
  }
  if (renormalise_) {
    double sum = 0;
    for (const float weight : new_weights) {
      sum += static_cast<double>(weight);
    }
    for (float& weight : new_weights) {
      weight = sum > 0 ? static_cast<float>(static_cast<double>(weight) / sum) : 0.0F;
    }
  }
  std::copy(new_ids.begin(), new_ids.end(), ids.begin());
  std::copy(new_weights.begin(), new_weights.end(), weights.begin());
  return true;
}

}  // namespace coterie::layer
