// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <span>

#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/gates/options.hpp"
#include "coterie/run/gates/prune_picks.hpp"
#include "coterie/run/gates/routing.hpp"
#include "coterie/run/gates/token_batch.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::gates {

/// Decides which experts see which tokens and with what weight. A module whose parameters carry the
/// names of Hugging Face where those exist (`weight`, `e_score_correction_bias`).
///
/// forward() changes nothing in the gate and depends on the batch and the parameters alone, so that
/// recompute replays it to the last bit. Not thread-safe. Parameters are fp32 or fp64 for good:
/// to(dtype) with a narrower type moves them nowhere.
class Gate : public torch::nn::Module {
 public:
  /// kBadInput (check_gate_options) naming the field.
  explicit Gate(GateOptions options);

  /// Routes a batch; T = 0 is fine. kBadInput where the batch does not fit; kUnsupported where this
  /// gate needs whole sequences and meets less. A token whose logits are no numbers is contained
  /// and told in the statistics, not thrown.
  virtual Routing forward(const TokenBatch& batch) = 0;

  /// True if a token's experts depend on the other tokens of its sequence.
  [[nodiscard]] virtual bool selects_within_sequence() const { return false; }
  /// Once a step, after the optimizer: `step_picks` [E] counts each expert's picks over the whole
  /// step, all ranks and micro-batches. Does nothing in gates without a selection bias.
  virtual void update_selection_bias(std::span<const std::int64_t> step_picks);

  /// From now on limits each token to few devices by this policy (null: no more). What the router
  /// learns from balance losses stays what it chose itself. kUnsupported, naming the gate, where
  /// tokens do not pick or the gate does not tell its scores; kBadInput for another number of
  /// experts.
  virtual void set_pruner(std::shared_ptr<const pruning::LayerPruner> pruner);

  [[nodiscard]] const GateOptions& options() const { return options_; }
  /// Threads and back end of the products; the pool must outlive the gate and its graphs.
  void set_execution(const kernels::Execution& execution) { execution_ = execution; }
  [[nodiscard]] const kernels::Execution& execution() const { return execution_; }

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  /// A new parameter [rows, columns] in the router's type, normal(0, initializer_range) by
  /// (initializer_seed, noise_stream, name).
  at::Tensor new_weight(const std::string& name, std::int64_t rows, std::int64_t columns);
  [[nodiscard]] at::ScalarType type() const;
  /// If no parameter of the gate learns, its losses pull at nothing else either.
  void detach_if_frozen(Routing& routing) const;

 private:
  GateOptions options_;
  kernels::Execution execution_;
};

/// A gate whose result is picks: logits, then a choice. The base takes care of padding, bad tokens,
/// losses, counts; a new gate writes two functions (docs/adding_a_gate.md).
class PickingGate : public Gate {
 public:
  using Gate::Gate;
  Routing forward(const TokenBatch& batch) final;
  void set_pruner(std::shared_ptr<const pruning::LayerPruner> pruner) override;

 protected:
  struct Choice {
    at::Tensor ids;      ///< int64 [T, k], distinct in a row; -1: none
    at::Tensor weights;  ///< [T, k], differentiable; not read where the id is -1
    /// [T, E] rows that sum to 1, differentiable: P of the load balance loss.
    at::Tensor probabilities;
    /// How other experts would have been chosen and weighed; what pruning needs.
    GateScores scores;
  };
  /// [T, E], any values.
  virtual at::Tensor logits(const TokenBatch& batch) = 0;
  /// `logits` are numbers (rows that are not usable are 0); usable is bool [T].
  virtual Choice choose(const TokenBatch& batch, const at::Tensor& logits,
                        const at::Tensor& usable) = 0;

 private:
  std::shared_ptr<const pruning::LayerPruner> pruner_;
};

/// The gate of that kind with new weights. kBadInput as check_gate_options; kCustom too.
std::shared_ptr<Gate> make_gate(const GateOptions& options);

}  // namespace coterie::gates
