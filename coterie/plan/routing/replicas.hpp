// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/plan/routing/expert_sets.hpp"

namespace coterie::routing {

/// What one placement makes of one layer's tokens. Everything is counted, ratios are derived.
/// A ratio without tokens is 0.
struct ReplicaStats {
  std::uint64_t num_tokens = 0;                ///< tokens with at least one expert
  std::uint64_t num_picks = 0;                 ///< (token, expert) pairs
  std::uint64_t num_replicas = 0;              ///< (token, device) pairs: rows that Dispatch makes
  std::vector<std::uint64_t> picks_of_device;  ///< [num_devices] expert rows computed
  std::vector<std::uint64_t> replicas_of_device;  ///< [num_devices] rows received

  /// C_T (Occult 3.2): mean number of devices a token is sent to.
  [[nodiscard]] double replicas_per_token() const;
  /// max / mean of picks_of_device: the slowest device's share of the computing.
  [[nodiscard]] double load_imbalance() const;
  /// max / mean of replicas_of_device.
  [[nodiscard]] double receive_imbalance() const;
  /// C_T x receive_imbalance: C_T as the busiest device sees it. Links are timed by this.
  [[nodiscard]] double bottleneck_replicas() const;

  /// Adds the counts of other tokens (same number of devices, or this is empty).
  ReplicaStats& operator+=(const ReplicaStats& other);
  bool operator==(const ReplicaStats&) const = default;
};
Json to_json(const ReplicaStats& stats);

/// Counts with one device an expert: `device_of_expert` is [num_experts], values in
/// [0, num_devices). Throws kBadInput for other values or sizes.
ReplicaStats count_replicas(const ExpertSets& sets, std::span<const std::int32_t> device_of_expert,
                            std::int32_t num_devices);

/// Chooses a device for each expert of one set: `devices` has the size of `experts`.
using DeviceChooser =
    std::function<void(std::span<const std::uint16_t> experts, std::span<std::int32_t> devices)>;

/// Counts with a chooser (experts with several replicas). The same set always goes the same way.
ReplicaStats count_replicas(const ExpertSets& sets, std::int32_t num_devices,
                            const DeviceChooser& chooser);

}  // namespace coterie::routing
