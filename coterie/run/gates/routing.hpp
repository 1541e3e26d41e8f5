// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::gates {

/// What a gate, and then an order, did with the real tokens of one batch. Counts of ranks and
/// micro-batches add up.
struct RoutingStatistics {
  std::int64_t num_tokens = 0;                 ///< real tokens, bad ones not counted
  std::vector<std::int64_t> picks_per_expert;  ///< [E] before capacity; SoftMoE: its slots
  /// [E] what the router chose before a pruning policy changed it; empty without a policy.
  std::vector<std::int64_t> unpruned_picks_per_expert;
  std::int64_t num_pruned_tokens = 0;   ///< that a pruning policy changed
  std::int64_t num_dropped_picks = 0;   ///< picks beyond capacity
  std::int64_t num_dropped_tokens = 0;  ///< real tokens left without any expert
  std::int64_t num_bad_tokens = 0;      ///< real tokens whose logits are not numbers
  std::int64_t first_bad_token = -1;    ///< its place in the batch

  /// What balance is measured by: the router's own choice.
  [[nodiscard]] const std::vector<std::int64_t>& router_picks() const {
    return unpruned_picks_per_expert.empty() ? picks_per_expert : unpruned_picks_per_expert;
  }
  bool operator==(const RoutingStatistics&) const = default;
};

Json to_json(const RoutingStatistics& statistics);

/// What a gate decided. Gates of picks fill ids and weights, SoftMoE fills dispatch and combine.
struct Routing {
  /// int32 [T, k] distinct expert ids by descending selection score, ties to the lowest id; -1: no
  /// expert (padding, bad tokens, fewer than k). Pruned rows are in the policy's order.
  at::Tensor ids;
  /// As ids, before a pruning policy changed them; undefined without a policy.
  at::Tensor unpruned_ids;
  /// Picks that each token makes; 0 where experts or slots choose, however many columns ids has.
  std::int64_t top_k = 0;
  at::Tensor weights;  ///< [T, k] fp32 or fp64, differentiable; exactly 0 where the id is -1
  /// [T, E] (SoftMoE [T, slots]) fp32 or fp64, differentiable: what scores are made of. Rows of
  /// padding and bad tokens are 0.
  at::Tensor logits;
  /// Scalar: balance losses times their coefficients, this batch's share of the step's (sum over
  /// ranks and micro-batches). Undefined if none is on. Without gradient if the gate is frozen.
  at::Tensor aux_loss;
  at::Tensor dispatch;  ///< SoftMoE: [T, slots], softmax over the tokens of each sequence
  at::Tensor combine;   ///< SoftMoE: [T, slots], softmax over the slots
  at::Tensor usable;    ///< bool [T]: real and with logits that are numbers
  RoutingStatistics statistics;
  /// On a GPU: int64 [E + 4] there, the counts that `statistics` still lacks (add_counts).
  at::Tensor counts;
};

/// Adds `counts` of a Routing (or a copy of it on the CPU) to its statistics; waits for the GPU if
/// it is there. Nothing to do if undefined.
void add_counts(RoutingStatistics& statistics, const at::Tensor& counts);

/// Throws kBadInput naming `name` (such as "layer 3") and the first token whose logits were NaN,
/// +inf or all -inf. Such tokens have no expert and spoil nothing else, so a caller reports when it
/// likes; ranks must agree on when, as any throw.
void require_good_routing(const RoutingStatistics& statistics, const std::string& name);

}  // namespace coterie::gates
