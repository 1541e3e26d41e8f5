// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// What each device gets of one layer's tokens.
struct DeviceCounts {
  std::uint64_t num_tokens = 0;
  std::vector<std::uint64_t> rows;   ///< [num_devices] token copies received
  std::vector<std::uint64_t> picks;  ///< [num_devices] (token, expert) pairs computed: the load

  bool operator==(const DeviceCounts&) const = default;
};

/// Counts every token. Where experts have several copies, each is served as ReplicaChooser does.
/// kBadInput if the placement has another number of experts than the sets.
DeviceCounts count_devices(const LayerPlacement& placement, const routing::ExpertSets& sets);

/// What a placement costs on one layer's rows. All figures are 0 without tokens.
struct LayerFigures {
  std::uint64_t num_tokens = 0;
  /// C_T: mean over tokens of the devices that get a copy of the token (Occult, section 3.2).
  double replicas = 0;
  /// C_T x max/mean rows received: what the busiest device makes every token cost.
  double bottleneck_replicas = 0;
  /// Max/mean over devices of (token, expert) pairs computed.
  double load_imbalance = 0;
  /// Max/mean over devices of token copies received.
  double receive_imbalance = 0;

  bool operator==(const LayerFigures&) const = default;
};

/// As count_devices.
LayerFigures measure_placement(const LayerPlacement& placement, const routing::ExpertSets& sets);

}  // namespace coterie::placement
