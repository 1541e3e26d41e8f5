// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/gates/routing.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::gates {

/// What a gate thinks of all experts, and how it makes weights of the scores of those it picks.
struct GateScores {
  at::Tensor selection;     ///< [T, E] what experts are ranked by; -inf: last
  at::Tensor weights;       ///< [T, E] >= 0, differentiable: what weights are made of
  bool sum_to_one = false;  ///< a token's weights are divided by their sum
  double scaling = 1.0;     ///< and multiplied by this
};

/// Who prunes: for messages, and with which threads.
struct PruneContext {
  std::string name;
  kernels::Execution execution;
};

/// Applies a pruning policy to what a gate chose: rewrites routing.ids and routing.weights and the
/// counts of picks, and keeps the old ids in routing.unpruned_ids; losses stay as they are. Tokens
/// that the policy leaves alone keep their bits, gradients included.
///
/// The policy decides on the scores rounded to fp32 (on the CPU; they are copied there from other
/// devices). With picks P before and N after, s the gate's scores, a changed token gets
///
///     w_i = s_i [keep_sum: * sum_P s / sum_N s]; sum_to_one: / sum_N w; * scaling
///
/// In fp32 the weights have the bits of LayerPruner::prune and, for sum_to_one, of a division by
/// their sum in double as layer::RoutingPruner does it; gradients are those of the formula, passed
/// straight through that rounding. Who is chosen has no gradient, as with top-k. A sum of 0 gives
/// weights 0.
///
/// kUnsupported naming the gate if it does not tell its scores.
void prune_routing(const pruning::LayerPruner& pruner, const GateScores& scores,
                   const PruneContext& context, Routing& routing);

}  // namespace coterie::gates
