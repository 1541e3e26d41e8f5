// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coterie/models/decoder.hpp"
#include "coterie/models/router.hpp"
#include "coterie/models/weights.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::models {

/// How the decoder computes its MoE layers: y = sum of weight * expert(x) over a token's experts.
class MoeBlock {
 public:
  MoeBlock() = default;
  MoeBlock(const MoeBlock&) = delete;
  MoeBlock& operator=(const MoeBlock&) = delete;
  virtual ~MoeBlock() = default;
  /// x [T, H] fp32 -> y [T, H] fp32; T may be 0. `moe_layer` counts MoE layers from 0. The record
  /// gets at least the tokens' expert ids and weights.
  virtual void forward(std::int64_t moe_layer, const at::Tensor& x, at::Tensor& y,
                       layer::RoutingRecord& record) = 0;
};

/// The router of one mixture layer.
Router make_router(const ModelConfig& config, const LayerWeights& weights);

/// The obvious way, in ATen alone: all experts in this process, one after another.
std::unique_ptr<MoeBlock> make_reference_block(const ModelConfig& config, const Weights& weights);

/// The MoE layer of run/layer: our kernels, our exchange, placements (one an MoE layer, or none).
std::unique_ptr<MoeBlock> make_layer_block(
    const ModelConfig& config, const Weights& weights, const DecoderOptions& options,
    const std::vector<placement::LayerPlacement>& placements);

}  // namespace coterie::models
