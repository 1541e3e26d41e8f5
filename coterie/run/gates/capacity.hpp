// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "coterie/run/gates/options.hpp"
#include "coterie/run/gates/routing.hpp"
#include "coterie/run/gates/token_batch.hpp"

namespace coterie::gates {

/// Picks that an expert accepts from n real tokens that make k picks each among E experts:
///
///     C = min(n, max(minimum, round(factor * k * n / E)))
///
/// rounded up or down, where a value within 1e-9 of a whole number is that number. A token picks an
/// expert at most once, so n is always enough. factor must be > 0.
std::int64_t expert_capacity(const CapacityOptions& options, std::int64_t num_tokens,
                             std::int64_t top_k, std::int64_t num_experts);

/// Tokens that share one capacity: a sequence, or all tokens of the call. Only usable ones.
struct CapacityBlock {
  std::vector<std::int64_t> tokens;  ///< places in the batch, ascending
  /// Places an expert has: expert_capacity, or without a limit the most picks of any expert here.
  std::int64_t capacity = 0;
};

/// Where each pick goes.
struct PickPlaces {
  std::vector<CapacityBlock> blocks;  ///< without tokens: left out
  /// int64 [T, k] on the CPU: the pick's place in [0, capacity) at its expert in its block; -1: no
  /// pick, or dropped. Places of an expert are filled from 0 without gaps.
  at::Tensor place;
  std::int64_t num_dropped = 0;
};

/// Shares out the experts' places. With a limit, who comes first (CapacityKeep) is kept:
/// kPosition: first choices of all tokens, then second choices, ...; among these earlier tokens.
/// kScore: higher routing weight; among equals as kPosition.
///
/// kBadInput naming `name` for a limit on a gate whose experts choose; kUnsupported for a limit in
/// causal generation, or by sequence where sequences are cut up over ranks.
PickPlaces place_picks(const TokenBatch& batch, const Routing& routing,
                       const CapacityOptions& options, const std::string& name);

}  // namespace coterie::gates
