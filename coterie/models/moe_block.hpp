// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coterie/models/decoder.hpp"
#include "coterie/models/weights.hpp"

namespace coterie::models {

/// The experts a batch's tokens chose in one layer.
struct BlockRouting {
  std::vector<std::int32_t> ids;  ///< [T, top_k], descending weight; -1 where there is none
  std::vector<float> weights;     ///< [T, top_k]
};

/// How the decoder computes its MoE layers: y = sum of weight * expert(x) over a token's experts.
class MoeBlock {
 public:
  MoeBlock() = default;
  MoeBlock(const MoeBlock&) = delete;
  MoeBlock& operator=(const MoeBlock&) = delete;
  virtual ~MoeBlock() = default;
  /// x [T, H] fp32 -> y [T, H] fp32; T may be 0. `moe_layer` counts MoE layers from 0.
  virtual void forward(std::int64_t moe_layer, const at::Tensor& x, at::Tensor& y,
                       BlockRouting& routing) = 0;
};

/// The obvious way, in ATen alone: all experts in this process, one after another.
std::unique_ptr<MoeBlock> make_reference_block(const ModelConfig& config, const Weights& weights);

}  // namespace coterie::models
