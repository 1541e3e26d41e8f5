// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coterie::models {

/// A tensor that belongs to the experts of one layer or to its router, as its name says.
struct ExpertName {
  std::int32_t layer = 0;
  std::int32_t expert = -1;  ///< -1: all experts of the layer (router, fused tensors)
  std::string before;        ///< the name up to the expert's number
  std::string after;         ///< the name behind it

  [[nodiscard]] std::string with_expert(std::int32_t number) const {
    return before + std::to_string(number) + after;
  }
};

/// Nothing for tensors that have no part in the order of experts. Knows names like
/// "model.layers.3.mlp.experts.7.up_proj.weight_scale", "model.layers.3.mlp.experts.down_proj_bias"
/// and whatever lies beside a router's weight ("model.layers.3.mlp.gate.bias").
std::optional<ExpertName> parse_expert_name(const std::string& tensor, const std::string& family);

}  // namespace coterie::models
