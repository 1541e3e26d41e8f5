// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/gates/gates.hpp"
#include "coterie/run/nn/hooks.hpp"

namespace coterie::nn {

/// What an expert is.
enum class ExpertKind : std::uint8_t {
  kSwiGlu,    ///< down(silu(gate x) * up x): Mixtral, OLMoE, Qwen-MoE, DeepSeek
  kGelu,      ///< down(gelu(up x)), exact GELU
  kGeluTanh,  ///< down(gelu(up x)), GPT-2's approximation
  kCustom,    ///< any module: see ExpertFactory
};

/// "swiglu", "gelu", "gelu_tanh", "custom".
const char* name_of(ExpertKind kind) noexcept;

/// Which way a layer computes.
enum class LayerPath : std::uint8_t {
  kExchange,   ///< the exchange and the library's kernels
  kGroupedMm,  ///< torch's grouped products and plain ATen, one process: the baseline on a GPU
  kReference,  ///< a loop over the experts in plain ATen, one process: slow, obvious, the measure
};

/// Makes the module of one expert by its global id: forward(Tensor [n, H]) -> Tensor [n, H], n may
/// be 0, each row's result its own. Its parameters must not depend on who makes it.
using ExpertFactory = std::function<torch::nn::AnyModule(std::int64_t expert_id)>;

/// A layer's parts and how it runs. Communicators, the pool of threads and all that hooks refer to
/// must outlive the layer and its graphs.
struct MoELayerOptions {
  std::string name = "MoE layer";  ///< begins every message, such as "layer 3"
  std::int64_t hidden = 0;         ///< H
  std::int64_t intermediate = 0;   ///< I of a whole expert; not for kCustom
  std::int32_t num_experts = 0;    ///< E
  std::int32_t top_k = 0;          ///< checked against what the gate gives; 0: whatever it gives
  ExpertKind expert_kind = ExpertKind::kSwiGlu;
  bool expert_bias = false;      ///< the GELU kinds have biases, as in GPT-2
  ExpertFactory expert_factory;  ///< kCustom only

  std::shared_ptr<gates::Gate> gate;
  std::shared_ptr<const gates::Order> order;  ///< null: the index order without capacity

  /// Limits each token to few devices of the placement, which must then be given. The gate gets it.
  std::shared_ptr<const pruning::LayerPruner> pruner;
  /// Which device holds which expert. Without: contiguous over the expert group, or one device.
  std::optional<placement::LayerPlacement> placement;
  /// EP: rank r is device r. Null: this process computes all experts, for all devices of the
  /// placement if there is one.
  comm::Communicator* expert_group = nullptr;
  /// ESP: each expert's I is cut evenly over its ranks. Null or of size 1: experts are whole.
  /// Ranks of a shard group have equal ranks in their expert groups and hold the same experts.
  comm::Communicator* shard_group = nullptr;
  exchange::ExchangeOptions exchange;
  std::shared_ptr<exchange::RowMovement> movement;  ///< null: FSMoE's

  /// Cuts of a batch; results do not depend on them, to the last bit. Custom experts run in
  /// forward_chunks both ways, and their own sums over rows then depend on it.
  std::int64_t forward_chunks = 1;
  std::int64_t backward_chunks = 1;
  /// Keeps neither received rows nor pre-activations for the backward. Not for kCustom.
  bool recompute = false;
  Hooks hooks;
  kernels::Execution execution;
  LayerPath path = LayerPath::kExchange;

  at::ScalarType type = at::kFloat;  ///< of x, y and the experts: fp64, fp32 or bf16
  double initializer_range = 0.02;   ///< deviation of new weights; biases start at 0; 0: all zeros
  std::uint64_t initializer_seed = 0;
};

/// Throws kBadInput or kUnsupported naming the layer, the field and its value.
void check_moe_layer_options(const MoELayerOptions& options);

}  // namespace coterie::nn
