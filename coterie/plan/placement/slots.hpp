// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/placement/layer_placement.hpp"

namespace coterie::placement {

/// [num_devices] parts of `total` that differ by at most one, larger ones first.
std::vector<std::int32_t> even_sizes(std::int32_t total, std::int32_t num_devices);

/// Experts of each device from the device of each expert; ascending.
LayerPlacement from_device_of_expert(std::span<const std::int32_t> device_of,
                                     std::int32_t num_devices);

/// Gives `num_extra` more slots to second copies: each to the expert with the largest load per copy
/// that some device with the fewest slots lacks. Devices that differ by at most one slot stay so.
void add_hot_copies(LayerPlacement& placement, std::span<const std::uint64_t> loads,
                    std::int32_t num_extra);

}  // namespace coterie::placement
