// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/layer/expert_products.hpp"
#include "coterie/run/layer/moe_options.hpp"
#include "coterie/run/layer/routing_pruner.hpp"

namespace coterie::layer {

/// A mixture-of-experts layer for inference:
///
///     y = sum over the k experts e of a token of weight_e * down_e(act(gate_e x) * up_e x)
///
/// with weight = softmax(router x) of the k largest, divided by their sum if norm_topk_prob.
///
/// Three ways to run, all with the same sums in the same order where the placement is the same:
///   no placement               one process, experts ascending
///   placement                  one process that stands for all devices ("virtual devices")
///   placement + communicator   rank r is device r and gives and gets its own tokens
/// The last two are equal to the last bit, whatever the number of ranks and who owns which token
/// (for one kernel back end and machine). Memory is kept between calls; nothing of the size
/// tokens x experts x hidden is ever made. Not thread-safe.
class MoeLayer {
 public:
  /// Weights, communicator (may be null) and the pool in `execution` must outlive the layer. Layers
  /// that take turns may share a `workspace` (null: an own one). Throws
  /// kBadInput naming layer and value if options, weights, placement and ranks do not fit.
  MoeLayer(MoeOptions options, MoeWeights weights,
           std::optional<placement::LayerPlacement> placement = {},
           comm::Communicator* communicator = nullptr, const kernels::Execution& execution = {},
           std::shared_ptr<Workspace> workspace = {});

  /// x [T, H] to y [T, H], each fp32 or bf16; T may be 0 and differ between ranks. All ranks must
  /// call it together: each call makes the same four collectives. `record`, if given, receives what
  /// was routed where. A token whose router logits are NaN, +inf or all -inf gets y = 0 and spoils
  /// no other; after all the work is done it is reported as kBadInput naming layer and token.
  void forward(const kernels::ConstMatrixView& x, const kernels::MatrixView& y,
               RoutingRecord* record = nullptr);

  /// As forward, with the routing given instead of computed.
  void forward_routed(const kernels::ConstMatrixView& x, const GivenRouting& routing,
                      const kernels::MatrixView& y, RoutingRecord* record = nullptr);

  [[nodiscard]] const MoeOptions& options() const { return options_; }
  [[nodiscard]] const placement::LayerPlacement& placement() const { return index_->placement(); }

 private:
  void check_rows(const kernels::ConstMatrixView& x, const kernels::ConstMatrixView& y) const;
  /// The device of each pick, for placements with several copies; else nothing.
  std::span<const std::int32_t> choose_devices(std::span<const std::int32_t> ids);
  void run(const kernels::ConstMatrixView& x, const exchange::TokenRouting& routing,
           const kernels::MatrixView& y);
  void run_plain_loops(const kernels::ConstMatrixView& x, const exchange::TokenRouting& routing,
                       const kernels::MatrixView& y);
  void fill_record(const kernels::ConstMatrixView& x, const exchange::TokenRouting& routing,
                   RoutingRecord& record) const;

  MoeOptions options_;
  MoeWeights weights_;
  kernels::Execution execution_;
  std::unique_ptr<exchange::PlacementIndex> index_;  // in place: the exchange refers to it
  std::unique_ptr<exchange::Exchange> exchange_;
  std::optional<placement::ReplicaChooser> chooser_;  // with several copies only
  std::optional<RoutingPruner> pruner_;
  std::vector<ExpertProducts> experts_;  // [local devices]

  std::vector<float> logits_;                 // [T, E]
  std::vector<std::int32_t> ids_;             // [T, k]
  std::vector<std::int32_t> unpruned_ids_;    // [T, k] with a pruner
  std::vector<float> pick_weights_;           // [T, k]
  std::vector<std::int32_t> device_of_pick_;  // [T, k]
  std::shared_ptr<Workspace> workspace_;
};

}  // namespace coterie::layer
