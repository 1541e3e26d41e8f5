// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "coterie/training/parameter.hpp"

namespace coterie::training {

/// Sequences that go through the model together. Each has one token more than it has targets: token
/// i + 1 is the target of token i.
struct MicroBatch {
  std::vector<std::vector<std::int32_t>> sequences;
  /// Of each sequence: its number in the run's data order, the same in every layout. Noise is drawn
  /// by (seed, step, number, position).
  std::vector<std::int64_t> numbers;
};

/// One optimizer step of one data-parallel rank. All ranks have equally many micro-batches; some
/// may be empty.
struct StepInput {
  std::vector<MicroBatch> micro_batches;
  std::int64_t num_targets = 0;    ///< of all ranks together: the loss is divided by it
  std::int64_t num_sequences = 0;  ///< of all ranks together: balance losses are averaged over them
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

/// What one MoE layer did in a step, summed over all ranks.
struct LayerLoad {
  std::int32_t layer = 0;
  std::vector<std::int64_t> picks;  ///< [E] (token, expert) pairs
  std::int64_t num_dropped = 0;     ///< picks dropped by capacity
  std::int64_t num_tokens = 0;
  std::int64_t num_rows = 0;  ///< (token, device) pairs that travelled or stayed

  /// The largest load of an expert over the mean one; 1 is perfect balance.
  [[nodiscard]] double imbalance() const;
  /// The same for `num_devices` devices that hold equally many experts each, in ascending order.
  [[nodiscard]] double device_imbalance(std::int64_t num_devices) const;
};

/// Sums over all ranks, the same on every rank.
struct StepResult {
  double loss_sum = 0;  ///< of -log p over targets, natural logarithm, without balance losses
  std::int64_t num_targets = 0;
  double aux_loss = 0;  ///< what was added to the mean loss
  std::vector<LayerLoad> layers;
};

struct LossSum {
  double loss_sum = 0;
  std::int64_t num_targets = 0;
};

/// Numbers of a model that do not depend on the layout.
struct ModelSize {
  std::int64_t num_parameters = 0;
  /// That take part in one token's products: embedding left out, top_k of the experts.
  std::int64_t num_active = 0;
  /// Products of one token forward, in multiply-adds times 2; see docs/training.md.
  double flops_per_token = 0;
};

/// A model as the trainer sees it, on one rank. All calls are collective over the ranks of the
/// model's layout, in the same order on all of them. Not thread-safe.
class Model {
 public:
  virtual ~Model() = default;

  /// The parameters of this rank; they and their tensors stay where they are.
  virtual std::span<Parameter> parameters() = 0;
  /// Adds the gradient of (loss_sum / num_targets + aux_loss) to every parameter's gradient, this
  /// rank's part of it; gradients are zero before the first call of a step.
  virtual StepResult forward_backward(const StepInput& input) = 0;
  /// Sums each gradient over its parameter's replicas.
  virtual void sum_gradients() = 0;
  /// Sets all gradients to zero.
  virtual void zero_gradients() = 0;
  /// After the optimizer: changes that are no gradient step (selection biases).
  virtual void after_step(const StepResult& /*result*/) {}
  /// The loss without gradients; sums over all ranks. Sequences may differ in number between ranks,
  /// micro-batches may not.
  virtual LossSum evaluate(std::span<const MicroBatch> micro_batches) = 0;
  /// The parameters of the model itself where `parameters` are others (adapters): what an exported
  /// model consists of, brought up to date. Collective like the others.
  virtual std::span<Parameter> exported_parameters() { return parameters(); }
  /// Writes config.json and what else describes the model into a checkpoint's folder.
  virtual void write_description(const std::filesystem::path& folder) const = 0;
  /// The same for a folder with the exported parameters.
  virtual void write_exported_description(const std::filesystem::path& folder) const {
    write_description(folder);
  }
  [[nodiscard]] virtual ModelSize size() const = 0;
  /// Bytes that this rank has sent to others so far.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;
};

}  // namespace coterie::training
