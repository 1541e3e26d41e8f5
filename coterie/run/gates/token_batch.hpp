// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace coterie::gates {

/// The tokens that one rank gives to a MoE layer: sequences one after another.
struct TokenBatch {
  at::Tensor x;  ///< [T, H] fp64, fp32, bf16 or fp16; T may be 0
  /// [S + 1] from 0 to T, ascending; sequence s is tokens [offsets[s], offsets[s + 1]), none is
  /// fine. Empty: all tokens are one sequence.
  std::vector<std::int64_t> sequence_offsets;
  /// int64 [T]: each token's number in the whole training run or step, whatever rank holds it. The
  /// key of its noise. Undefined: 0 .. T - 1, right for one rank without accumulation.
  at::Tensor token_ids;
  /// bool [T]; false is padding: routed nowhere, counted nowhere. Undefined: all are real.
  at::Tensor is_real;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  bool training = false;  ///< noise is only added in training
  /// Tokens come one after another, so a later one must not change an earlier one: gates that
  /// select within a sequence refuse.
  bool causal_generation = false;
  /// Sequences with at least one real token in the whole step: all ranks, all micro-batches. The
  /// losses of this batch are shares of the step's. 0: this batch is the whole step.
  std::int64_t num_step_sequences = 0;
  /// Set where sequences are cut up over several ranks (sequence parallelism; all have the same S):
  /// sums a tensor in place over these ranks. Each rank then gives its part of the losses, and the
  /// sum over the ranks is the loss. All ranks must call their gates in the same order.
  std::function<void(at::Tensor&)> sum_shards;

  [[nodiscard]] std::int64_t num_tokens() const { return x.size(0); }
  [[nodiscard]] std::int64_t num_sequences() const {
    return sequence_offsets.empty() ? 1 : static_cast<std::int64_t>(sequence_offsets.size()) - 1;
  }
  /// First token of sequence s; s may be S.
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t s) const {
    return sequence_offsets.empty() ? s * num_tokens()
                                    : sequence_offsets[static_cast<std::size_t>(s)];
  }
};

/// Throws kBadInput naming `name`, the field and the value where shapes, types or offsets are
/// wrong.
void check_token_batch(const TokenBatch& batch, std::int64_t hidden, const std::string& name);

/// Throws kUnsupported where a gate or order that needs whole sequences meets parts of them:
/// causal generation, or sequences cut up over ranks. `what` begins the message.
void require_whole_sequences(const TokenBatch& batch, const std::string& what);

}  // namespace coterie::gates
