// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/models/checkpoint.hpp"
#include "coterie/models/trainable_config.hpp"
#include "coterie/models/trainable_options.hpp"
#include "coterie/models/trainable_parameter.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::models {

/// Sequences of one data coordinate, one after another; every rank with that coordinate (all model
/// ranks, all stages) gets the same. None is fine.
struct MicroBatch {
  at::Tensor token_ids;                        ///< int64 [T]
  std::vector<std::int64_t> sequence_offsets;  ///< [S + 1] from 0 to T; empty sequences are fine
  /// int64 [T], -100: none. Undefined: the next token of the sequence.
  at::Tensor targets;
  /// [S] each sequence's number in the whole run, whoever has it: the key of noise. Empty: 0, 1,
  /// ...
  std::vector<std::int64_t> sequence_numbers;
  /// bool [T], false: padding, which no expert sees. Undefined: all are real.
  at::Tensor is_real;
};

/// What a MoE layer did in a step, summed over all ranks.
struct LayerStatistics {
  std::int64_t layer = 0;
  gates::RoutingStatistics routing;
  std::int64_t bytes_sent = 0;     ///< forward, to other ranks
  std::int64_t rows_sent = 0;      ///< forward: (token, device) pairs
  std::vector<at::Tensor> unread;  ///< counts on a GPU that `routing` lacks; empty in results
};

/// What a step did; the same on every rank.
struct StepResult {
  double loss_sum = 0;           ///< of -log p over target tokens
  double aux_loss = 0;           ///< balance losses with their coefficients, of all layers
  std::int64_t num_targets = 0;  ///< target tokens
  std::int64_t num_tokens = 0;
  std::vector<LayerStatistics> layers;  ///< MoE layers, ascending

  /// Mean over target tokens; 0 without any.
  [[nodiscard]] double mean_loss() const {
    return num_targets == 0 ? 0 : loss_sum / static_cast<double>(num_targets);
  }
};

/// A mixture-of-experts decoder for training, as one rank holds it: its stage's layers, its heads,
/// its experts.
///
/// What is minimised: (sum over target tokens of -log p) / (number of target tokens of the whole
/// step) + auxiliary losses. Both counts are global, so that gradients over ranks and micro-batches
/// are plain sums (reduce_table). fp64 results agree at every layout to rounding (1e-9); one layout
/// gives the same bits from run to run.
///
/// Every rank of the world makes the same calls in the same order, with the same number of
/// micro-batches. kBadInput names what is wrong: sizes that do not divide, token ids out of range,
/// sequences too long. Not thread-safe. The groups must outlive the decoder.
class TrainableDecoder {
 public:
  /// New parameters from options.seed, the same at every layout.
  TrainableDecoder(const TrainableConfig& config, parallel::Groups& groups,
                   const TrainableOptions& options);
  ~TrainableDecoder();
  TrainableDecoder(const TrainableDecoder&) = delete;
  TrainableDecoder& operator=(const TrainableDecoder&) = delete;

  [[nodiscard]] const TrainableConfig& config() const;
  [[nodiscard]] const TrainableOptions& options() const;
  [[nodiscard]] parallel::Groups& groups() const;
  /// Parameters of this rank in a fixed order (embedding, layers, norm, head).
  [[nodiscard]] std::span<TrainableParameter> parameters() const;
  /// One entry a parameter, in their order.
  [[nodiscard]] parallel::ReduceTable reduce_table() const;

  /// Reads all parameters of this rank. kBadInput names file and tensor.
  void load(const Checkpoint& checkpoint);

  /// Forward and backward of all micro-batches: gradients are added to what is there, not yet
  /// summed over ranks. With stages: all forwards, then all backwards (GPipe, arXiv:1811.06965),
  /// both in ascending order, which is the order of additions without stages too. `step` keys
  /// noise.
  StepResult forward_backward(std::span<const MicroBatch> micro_batches, std::uint64_t step);
  /// Forward only, without noise: losses and statistics.
  StepResult evaluate(std::span<const MicroBatch> micro_batches);

  /// Sums each gradient over its group, in the order of parameters. A parameter without a gradient
  /// gets zeros first. (A trainer may do this in buckets of its own: the bits are the same.)
  void reduce_gradients();
  void zero_gradients();
  /// Once a step, after the optimizer, on gates that have a selection bias.
  void update_selection_biases(const StepResult& step);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace coterie::models
