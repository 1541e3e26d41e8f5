// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/placement.hpp"

namespace coterie::exchange {

/// Look-ups derived once from a LayerPlacement, which stays the one source of truth. Immutable, so
/// threads may share it.
class PlacementIndex {
 public:
  /// Throws kBadInput if the placement breaks an invariant (`check_layer_placement`).
  explicit PlacementIndex(placement::LayerPlacement placement);

  [[nodiscard]] const placement::LayerPlacement& placement() const { return placement_; }
  [[nodiscard]] std::int32_t num_devices() const { return placement_.num_devices(); }
  [[nodiscard]] std::int32_t num_experts() const { return placement_.num_experts; }
  /// Experts that a device holds: its slots are numbered 0..n-1 in ascending expert id.
  [[nodiscard]] std::int32_t num_slots(std::int32_t device) const {
    return static_cast<std::int32_t>(experts_of(device).size());
  }
  /// [num_slots] expert ids of a device, ascending.
  [[nodiscard]] const std::vector<std::int32_t>& experts_of(std::int32_t device) const {
    return placement_.experts_of_device[static_cast<std::size_t>(device)];
  }
  /// Slot of an expert on a device, or -1 if the device does not hold it.
  [[nodiscard]] std::int32_t slot_of(std::int32_t device, std::int32_t expert) const {
    return slots_(static_cast<std::size_t>(device), static_cast<std::size_t>(expert));
  }
  /// The lowest device that holds an expert: its only one if the placement has single copies.
  [[nodiscard]] std::int32_t first_device_of(std::int32_t expert) const {
    return first_device_[static_cast<std::size_t>(expert)];
  }

 private:
  placement::LayerPlacement placement_;
  Matrix<std::int32_t> slots_;  // [num_devices, num_experts]
  std::vector<std::int32_t> first_device_;
};

}  // namespace coterie::exchange
