// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "coterie/run/exchange/placement_index.hpp"

namespace coterie::exchange {

/// What the router decided for the tokens of one rank; views of arrays that belong to the caller.
struct TokenRouting {
  std::int64_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::span<const std::int32_t> expert_ids;  ///< [num_tokens, top_k]; -1: no expert, adds exact 0
  /// [num_tokens, top_k], not read where the id is -1. Empty: all 1 (training moves the weights
  /// apart, since they need not be fp32).
  std::span<const float> weights;
  /// [num_tokens, top_k] the device that serves each pick, for placements with several copies of
  /// an expert. Empty: the lowest device that holds the expert. Not read where the id is -1.
  std::span<const std::int32_t> device_of_pick;

  [[nodiscard]] std::size_t pick(std::int64_t token, std::int32_t i) const {
    return static_cast<std::size_t>(token * top_k + i);
  }
  /// The device that serves pick i of a token, whose id is not -1.
  [[nodiscard]] std::int32_t device(const PlacementIndex& index, std::int64_t token,
                                    std::int32_t i) const {
    return device_of_pick.empty() ? index.first_device_of(expert_ids[pick(token, i)])
                                  : device_of_pick[pick(token, i)];
  }
};

/// Most experts a token may have: the number of a row's entries travels as 8 bits.
inline constexpr std::int32_t kMaxTopK = 255;

/// Throws kBadInput naming `where`, token and value: arrays of the wrong length, an id outside
/// [-1, num_experts), an expert that a token has twice, a device that does not hold the expert.
void check_token_routing(const TokenRouting& routing, const PlacementIndex& index,
                         const std::string& where);

}  // namespace coterie::exchange
