// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/models/trainable_block.hpp"
#include "coterie/models/trainable_decoder.hpp"

namespace coterie::models {

/// Throws kBadInput naming micro-batch, sequence, position and value.
void check_micro_batch(const MicroBatch& batch, std::size_t index, const ModelConfig& config);

/// The targets of all tokens, int64 [T]: those given, or each sequence's next tokens.
at::Tensor targets_of(const MicroBatch& batch);

/// Counts over the whole step, the same on every rank of a stage.
struct StepCounts {
  std::int64_t num_targets = 0;
  std::int64_t num_tokens = 0;     ///< real ones
  std::int64_t num_sequences = 0;  ///< with a real token
};
/// Collective over the stage. kBadInput if ranks come with different numbers of micro-batches.
StepCounts count_step(std::span<const MicroBatch> batches, const parallel::Groups& groups);

/// Rotary tables on the model's device, made once for the longest sequence so far.
class RotaryTables {
 public:
  RotaryTable of(const ModelConfig& config, std::int64_t num_positions,
                 const TrainableOptions& options);

 private:
  RotaryTable longest_;
  std::int64_t num_positions_ = 0;
};

/// Where in the run a micro-batch belongs.
struct StepPlace {
  std::uint64_t step = 0;
  bool training = false;
  RotaryTables& tables;
};

/// What the layers of this rank need of a micro-batch. Noise and losses: `place`, `counts`.
StageTokens stage_tokens(const MicroBatch& batch, const TrainableConfig& config,
                         const TrainableOptions& options, parallel::Groups& groups,
                         const StepCounts& counts, const StepPlace& place);

}  // namespace coterie::models
