// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "coterie/run/gates/routing.hpp"
#include "coterie/run/gates/token_batch.hpp"

namespace coterie::gates {

/// bool [T]: real tokens whose logits [T, N] hold no NaN and no +inf and are not all -inf. Fills
/// the statistics' num_tokens, num_bad_tokens and first_bad_token.
at::Tensor usable_tokens(const TokenBatch& batch, const at::Tensor& logits,
                         RoutingStatistics& statistics);

/// The same without counting and without waiting for a GPU.
at::Tensor usable_tokens(const TokenBatch& batch, const at::Tensor& logits);
/// Routing::counts: int64 [E + 4] on the GPU: picks of each expert, usable tokens, usable tokens
/// with an expert, bad tokens, the first bad token.
at::Tensor counts_on_gpu(const TokenBatch& batch, const Routing& routing, std::int64_t num_experts);

/// Fills picks_per_expert, and num_dropped_tokens with usable tokens without an expert.
/// ids int32 [T, k].
void count_picks(const at::Tensor& ids, std::int64_t num_experts, RoutingStatistics& statistics);

/// Fills num_dropped_picks, and num_dropped_tokens from the ids that are left.
void count_drops(const at::Tensor& kept_ids, std::int64_t num_dropped_picks,
                 RoutingStatistics& statistics);

/// Usable tokens of each sequence: S lists of places in the batch, ascending.
std::vector<std::vector<std::int64_t>> usable_by_sequence(const TokenBatch& batch,
                                                          const at::Tensor& usable);

}  // namespace coterie::gates
