// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/cost/cost.hpp"

namespace coterie::schedule {

/// One kind of operation of a layer: how large it is and what it costs.
struct Stage {
  cost::CostModel model;
  double size = 0;   ///< bytes or floating-point operations of one call, for all tokens of a device
  double calls = 1;  ///< calls one after another (matrices of an expert), each of `size`

  /// Seconds for a share of the tokens. 0 for nothing.
  [[nodiscard]] double time_s(double share = 1) const { return calls * model.time_s(size * share); }

  bool operator==(const Stage&) const = default;
};

/// What one device does in the forward or the backward pass of a generalised layer: one MoE layer
/// and the block around it (FSMoE, section 5.2). A stage that the layer lacks has size 0.
struct PhaseWork {
  Stage dispatch;        ///< D, between nodes
  Stage gather;          ///< AG, inside the node
  Stage experts;         ///< E; backward: products for inputs
  Stage weights;         ///< W, backward: products for weight gradients; nothing waits for them
  Stage scatter;         ///< RS, inside the node
  Stage combine;         ///< C, between nodes
  Stage shared_experts;  ///< S, without exchange
  Stage dense_gather;    ///< all-gather of the sequence
  Stage attention;
  Stage dense_scatter;  ///< reduce-scatter of the sequence

  /// Seconds of the part outside the MoE layer, in which nothing overlaps.
  [[nodiscard]] double dense_s() const {
    return dense_gather.time_s() + attention.time_s() + dense_scatter.time_s();
  }

  bool operator==(const PhaseWork&) const = default;
};

struct LayerWork {
  PhaseWork forward;
  PhaseWork backward;
  Stage gradient;  ///< all-reduce of the block's dense gradients; size in bytes
  std::int32_t devices_per_node = 1;

  bool operator==(const LayerWork&) const = default;
};

}  // namespace coterie::schedule
