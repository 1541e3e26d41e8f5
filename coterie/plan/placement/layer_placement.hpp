// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/ids.hpp"

namespace coterie::placement {

/// Where the experts of one MoE layer live. The one source of truth: every other map is derived.
/// Invariants (checked by `check_layer_placement`): every expert has at least one slot, no device
/// holds an expert twice, no device is empty, ids lie in range.
struct LayerPlacement {
  std::int32_t num_experts = 0;
  /// [num_devices][slots of the device] expert ids, ascending on each device. Devices may hold
  /// different numbers of slots (when experts do not divide by devices).
  std::vector<std::vector<std::int32_t>> experts_of_device;
  /// [num_devices] or empty (all 0): what ReplicaChooser adds to the cost of serving a token on a
  /// device, so that devices whose experts are busy elsewhere get more. Only matters with replicas.
  std::vector<std::uint32_t> device_prices;

  [[nodiscard]] std::int32_t num_devices() const {
    return static_cast<std::int32_t>(experts_of_device.size());
  }
  /// Slots of all devices together: num_experts plus redundant replicas.
  [[nodiscard]] std::int32_t num_slots() const;
  /// True if no expert has more than one slot.
  [[nodiscard]] bool has_single_copies() const { return num_slots() == num_experts; }
  /// [num_experts] the device of each expert; kInternal if some expert has several.
  [[nodiscard]] std::vector<std::int32_t> device_of_expert() const;
  /// [num_experts] the devices that hold each expert, ascending.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> devices_of_expert() const;
  /// Device-major list of expert ids, as in SGLang's physical_to_logical_map.
  [[nodiscard]] std::vector<std::int32_t> physical_to_logical() const;

  bool operator==(const LayerPlacement&) const = default;
};

/// Throws kBadInput naming `where` and the breach if an invariant does not hold.
void check_layer_placement(const LayerPlacement& placement, const std::string& where);

/// Experts in checkpoint order, the first devices one expert larger where they do not divide: what
/// every engine does by default.
LayerPlacement contiguous_placement(std::int32_t num_experts, std::int32_t num_devices);

}  // namespace coterie::placement
