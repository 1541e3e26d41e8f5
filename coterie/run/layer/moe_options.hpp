// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::layer {

/// What a layer is and how it runs.
struct MoeOptions {
  std::string name = "MoE layer";  ///< begins every message, such as "layer 3"
  std::int64_t hidden = 0;         ///< H, width of a token
  std::int64_t intermediate = 0;   ///< I, width inside an expert
  std::int32_t num_experts = 0;    ///< E
  std::int32_t top_k = 0;          ///< k, experts a token
  bool norm_topk_prob = false;     ///< the k weights are divided by their sum
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  exchange::ExchangeOptions exchange;
  /// Computes with plain loops over tokens, devices and experts instead of the exchange: slow,
  /// obvious, equal to the last bit. Only without a communicator.
  bool plain_loops = false;
  /// Limits the tokens of this layer to few devices; null: no pruning. It must be made for the
  /// layer's placement.
  std::shared_ptr<const pruning::LayerPruner> pruner;
};

/// Throws kBadInput naming the layer and the value if sizes do not make sense (k > E, H = 0, ...).
void check_moe_options(const MoeOptions& options);

/// Weights of one layer, as views of memory that belongs to the caller and must outlive the layer.
/// fp32 or bf16, each tensor on its own.
struct MoeWeights {
  kernels::ConstMatrixView router;  ///< [E, H]
  /// [E] of [2I, H]: rows of the gate, then rows of up. Experts that no device of this process
  /// holds stay empty (`data` null).
  std::vector<kernels::ConstMatrixView> gate_up;
  std::vector<kernels::ConstMatrixView> down;  ///< [E] of [H, I]
};

/// The memory of the products.
struct ProductBuffers {
  exchange::ByteBuffer hidden;
  exchange::ByteBuffer outputs;
};

/// The memory that a layer needs only while it runs: the layers of a model share one.
struct Workspace {
  std::shared_ptr<exchange::RowBuffers> rows = std::make_shared<exchange::RowBuffers>();
  ProductBuffers products;
};

/// A routing decided elsewhere, in place of the router's.
struct GivenRouting {
  std::span<const std::int32_t> expert_ids;  ///< [T, k], -1: no expert
  std::span<const float> weights;            ///< [T, k]
  /// [T, k] or empty: then the placement decides, as for the router's choice.
  std::span<const std::int32_t> device_of_pick;
};

/// What a forward did with this process's tokens; filled by the layer, its memory reused.
struct RoutingRecord {
  bool keep_logits = false;  ///< set by the caller

  std::int64_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::vector<std::int32_t> expert_ids;      ///< [T, k] by descending logit; -1: no expert
  std::vector<float> weights;                ///< [T, k]
  std::vector<float> logits;                 ///< [T, E] with keep_logits, else empty
  std::vector<std::int32_t> unpruned_ids;    ///< [T, k] with a pruner, else empty
  std::int64_t num_pruned_tokens = 0;        ///< whose experts or weights the pruner changed
  std::vector<std::int32_t> device_of_pick;  ///< [T, k], -1 beside an id of -1
  /// Bytes and rows to and from each device, computed from ids and placement alone; the own device
  /// is included. Without a communicator: what a rank that is no device would send and get.
  exchange::HomeTraffic predicted;
  std::vector<std::int64_t> rows_received;  ///< [local devices] rows that came to be computed
};

}  // namespace coterie::layer
