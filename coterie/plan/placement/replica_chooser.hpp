// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/placement/layer_placement.hpp"

namespace coterie::placement {

/// Which copy of each expert serves a token, when experts have several. The token travels to the
/// fewest devices: an exact minimum set cover of its experts by devices. Among minimum covers, and
/// among copies inside a cover, the lowest sum over (expert, device) pairs of
///     device price + a pseudo-random number below kNoise of (the token's set of experts, device)
/// wins: tokens that could go either way spread over devices in proportions that prices steer.
/// The choice depends on the placement and the set of ids alone, not on the order of ids, the
/// token's position, rank or batch: all ranks and a single process agree. Thread-safe.
class ReplicaChooser {
 public:
  /// Copies what it needs. Throws as check_layer_placement does.
  explicit ReplicaChooser(const LayerPlacement& placement);

  /// devices_out[i] = device that computes expert ids[i] of one token; -1 for id -1 (no expert).
  /// Both of the same length, at most kMaxTopK; ids distinct, in [0, num_experts) or -1
  /// (kInternal otherwise).
  void choose(std::span<const std::int32_t> ids, std::span<std::int32_t> devices_out) const;

  static constexpr std::size_t kMaxTopK = 64;
  static constexpr std::uint32_t kNoise = 1U << 16U;

 private:
  std::int32_t num_experts_ = 0;
  std::vector<std::uint32_t> first_copy_;  ///< [num_experts + 1] into devices_
  std::vector<std::int32_t> devices_;      ///< devices of each expert, ascending
  std::vector<std::uint32_t> prices_;      ///< [num_devices]
};

}  // namespace coterie::placement
