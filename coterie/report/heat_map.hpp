// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/placement.hpp"

namespace coterie::report {

/// Experts in the order of their devices (an expert with copies stands at its first device) and
/// where each device begins in that order.
struct DeviceOrder {
  std::vector<std::int32_t> experts;  ///< [num_experts]
  std::vector<std::size_t> begins;    ///< [num_devices + 1]
};
DeviceOrder device_order(const placement::LayerPlacement& placement);

/// The count that gets the full colour: one in a hundred off-diagonal counts lies above, so that
/// one hot pair does not make all others pale. At least 1.
std::uint64_t full_colour_count(const Matrix<std::uint64_t>& pairs);

/// SVG of the co-activation counts with experts in that order and a frame round each device's
/// block. `label` is read out by screen readers.
std::string heat_map_svg(const Matrix<std::uint64_t>& pairs, const DeviceOrder& order,
                         std::uint64_t full_count, const std::string& label);

/// Share of all co-activations (pairs of experts of a token) that stay on one device, in [0, 1].
double share_inside(const Matrix<std::uint64_t>& pairs, const DeviceOrder& order);

}  // namespace coterie::report
