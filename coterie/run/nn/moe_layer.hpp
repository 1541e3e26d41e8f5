// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/gates/gates.hpp"
#include "coterie/run/layer/layer.hpp"
#include "coterie/run/nn/experts.hpp"
#include "coterie/run/nn/moe_layer_options.hpp"

namespace coterie::nn {

class ExpertsRun;

/// What a forward did with this process's tokens. Counts of ranks and micro-batches add up.
struct MoEStatistics {
  gates::RoutingStatistics routing;  ///< tokens, picks an expert, dropped
  std::int64_t num_rows = 0;         ///< rows that the order gave to the exchange
  std::int64_t num_replicas = 0;     ///< rows sent to devices, the own one included: num_replicas /
                                     ///< num_rows is the mean number of replicas a token
  std::uint64_t bytes_metadata = 0;  ///< that left this rank in the forward
  std::uint64_t bytes_dispatch = 0;
  std::uint64_t bytes_combine = 0;

  bool operator==(const MoEStatistics&) const = default;
};

struct MoEResult {
  at::Tensor y;         ///< [T, H] of x's type
  at::Tensor aux_loss;  ///< scalar to add to the loss, or undefined
  at::Tensor ids;       ///< int32 [R, k] what the experts got, -1: none
  /// int32 [T, k] what the router chose before pruning and capacity; undefined for SoftMoE.
  at::Tensor router_ids;
  MoEStatistics statistics;
  /// On a GPU: what statistics.routing still lacks, so that the forward need not wait for the GPU;
  /// gates::add_counts adds it. Undefined: nothing is lacking.
  at::Tensor counts;
};

/// A mixture-of-experts layer that trains:
///
///     y = restore(sum over picks of weight * expert(rows)),  rows = order(x, gate(x))
///
/// Parameters: `gate.*` as the gate names them, `experts.*` as Experts does. In an expert group a
/// process holds the experts of its device only; with shards, its part of each.
///
/// Gradients are those of this process's loss for the gate and x, and of all ranks' losses together
/// for the experts (each rank's loss counts once): so where the step's loss is the sum of the
/// ranks' losses, experts need no further sum over the expert group. Bits of y and of all gradients
/// do not depend on chunks, threads, buffers or recompute; nor on ranks against one process that
/// stands for all devices (docs/design/017).
///
/// The forward changes nothing in the layer that a later forward could see, so recomputing a block
/// around it repeats it exactly; statistics are returned, not gathered.
/// On a GPU (to(device)) one process holds all experts: without exchange, by the library's kernels
/// (bf16 SwiGLU) or ATen's grouped products (other types and kinds), on torch's current stream.
/// All ranks of the groups must call forward and backward together; every call makes the same
/// collectives whatever the routing, also on a rank without tokens. x (or something before it) must
/// require gradients on all ranks or on none. Not thread-safe.
class MoELayerImpl final : public torch::nn::Module {
 public:
  /// kBadInput or kUnsupported (check_moe_layer_options).
  explicit MoELayerImpl(MoELayerOptions options);
  ~MoELayerImpl() override;

  /// T may be 0 and differ between ranks. kBadInput naming the layer and the value; tokens whose
  /// logits are no numbers get y = 0 and are told in the statistics.
  MoEResult forward(const gates::TokenBatch& batch);

  /// One process that stands for all devices: tokens [o[s], o[s + 1]) of later batches count as
  /// rank s's in the order of sums over tokens, so that gradients get the bits of that many ranks.
  /// Empty: all are one rank's.
  void set_virtual_sources(std::vector<std::int64_t> offsets);

  /// How later forwards and backwards run; see layer::TrainingLayer. The same on every rank, between
  /// steps. Custom experts and layers with hooks inside the exchange run chunk after chunk all the
  /// same.
  void set_plan(std::optional<schedule::LayerPlan> plan);
  void set_run(const layer::LayerRun& run);

  [[nodiscard]] const MoELayerOptions& options() const { return options_; }
  [[nodiscard]] const placement::LayerPlacement& placement() const { return *options_.placement; }
  [[nodiscard]] gates::Gate& gate() { return *options_.gate; }
  [[nodiscard]] Experts& experts() { return experts_; }

 private:
  [[nodiscard]] std::array<std::uint64_t, 3> bytes_sent() const;
  at::Tensor run_experts(const gates::OrderedRows& rows, MoEStatistics& statistics);
  at::Tensor run_here(const gates::OrderedRows& rows);

  MoELayerOptions options_;
  Experts experts_{nullptr};
  std::shared_ptr<ExpertsRun> run_;  // graphs hold on to it
  std::vector<std::int64_t> virtual_sources_;
};
TORCH_MODULE(MoELayer);

/// The experts part by plain ATen, one process: for each expert its picks are gathered, computed,
/// weighted and added up in the routing weights' type, experts ascending; then rounded to the rows'
/// type. rows [R, H], ids int32 [R, k], weights [R, k]; returns [R, H].
at::Tensor reference_experts(ExpertsImpl& experts, const at::Tensor& rows, const at::Tensor& ids,
                             const at::Tensor& weights);

}  // namespace coterie::nn
