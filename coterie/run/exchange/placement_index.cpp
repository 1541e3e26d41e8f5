// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/placement_index.hpp"

#include <limits>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::exchange {

PlacementIndex::PlacementIndex(placement::LayerPlacement placement)
    : placement_(std::move(placement)) {
  placement::check_layer_placement(placement_, "placement of the exchange");
  slots_ = Matrix<std::int32_t>(static_cast<std::size_t>(num_devices()),
                                static_cast<std::size_t>(num_experts()), -1);
  first_device_.assign(static_cast<std::size_t>(num_experts()), -1);
  for (std::int32_t device = 0; device < num_devices(); ++device) {
    // Slot numbers travel as 16 bits.
    COTERIE_REQUIRE(num_slots(device) <= std::numeric_limits<std::uint16_t>::max(), "device ",
                    device, " holds ", num_slots(device), " experts; at most 65535 are supported");
    for (std::int32_t slot = 0; slot < num_slots(device); ++slot) {
      const auto expert =
          static_cast<std::size_t>(experts_of(device)[static_cast<std::size_t>(slot)]);
      slots_(static_cast<std::size_t>(device), expert) = slot;
      if (first_device_[expert] < 0) {
        first_device_[expert] = device;
      }
    }
  }
}

}  // namespace coterie::exchange
