// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/layer_placement.hpp"

#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::placement {

std::int32_t LayerPlacement::num_slots() const {
  std::size_t slots = 0;
  for (const auto& experts : experts_of_device) {
    slots += experts.size();
  }
  return static_cast<std::int32_t>(slots);
}

std::vector<std::int32_t> LayerPlacement::device_of_expert() const {
  std::vector<std::int32_t> device_of(static_cast<std::size_t>(num_experts), -1);
  for (std::int32_t device = 0; device < num_devices(); ++device) {
    for (const std::int32_t expert : experts_of_device[static_cast<std::size_t>(device)]) {
      auto& entry = device_of[static_cast<std::size_t>(expert)];
      COTERIE_CHECK(entry < 0, "expert ", expert, " has copies on devices ", entry, " and ",
                    device);
      entry = device;
    }
  }
  return device_of;
}

std::vector<std::vector<std::int32_t>> LayerPlacement::devices_of_expert() const {
  std::vector<std::vector<std::int32_t>> devices_of(static_cast<std::size_t>(num_experts));
  for (std::int32_t device = 0; device < num_devices(); ++device) {
    for (const std::int32_t expert : experts_of_device[static_cast<std::size_t>(device)]) {
      devices_of[static_cast<std::size_t>(expert)].push_back(device);
    }
  }
  return devices_of;
}

std::vector<std::int32_t> LayerPlacement::physical_to_logical() const {
  std::vector<std::int32_t> map;
  map.reserve(static_cast<std::size_t>(num_slots()));
  for (const auto& experts : experts_of_device) {
    map.insert(map.end(), experts.begin(), experts.end());
  }
  return map;
}

void check_layer_placement(const LayerPlacement& placement, const std::string& where) {
  COTERIE_REQUIRE(placement.num_experts > 0, where, ": number of experts is ",
                  placement.num_experts);
  COTERIE_REQUIRE(placement.num_devices() > 0, where, ": there is no device");
  COTERIE_REQUIRE(placement.device_prices.empty() ||
                      placement.device_prices.size() == placement.experts_of_device.size(),
                  where, ": ", placement.device_prices.size(), " device prices for ",
                  placement.num_devices(), " devices");
  std::vector<bool> placed(static_cast<std::size_t>(placement.num_experts));
  for (std::int32_t device = 0; device < placement.num_devices(); ++device) {
    const auto& experts = placement.experts_of_device[static_cast<std::size_t>(device)];
    COTERIE_REQUIRE(!experts.empty(), where, ": device ", device, " holds no expert");
    std::int32_t previous = -1;
    for (const std::int32_t expert : experts) {
      COTERIE_REQUIRE(expert >= 0 && expert < placement.num_experts, where, ": device ", device,
                      ": expert ", expert, " is not in [0, ", placement.num_experts, ")");
      COTERIE_REQUIRE(expert != previous, where, ": device ", device, " holds expert ", expert,
                      " twice");
      COTERIE_REQUIRE(expert > previous, where, ": device ", device,
                      ": experts are not ascending: ", previous, " before ", expert);
      placed[static_cast<std::size_t>(expert)] = true;
      previous = expert;
    }
  }
  for (std::size_t expert = 0; expert < placed.size(); ++expert) {
    COTERIE_REQUIRE(placed[expert], where, ": expert ", expert, " has no device");
  }
}

LayerPlacement contiguous_placement(std::int32_t num_experts, std::int32_t num_devices) {
  COTERIE_REQUIRE(num_devices > 0, "number of devices is ", num_devices);
  COTERIE_REQUIRE(num_devices <= num_experts, num_devices, " devices are more than the ",
                  num_experts, " experts of the model: some device would hold none");
  LayerPlacement placement;
  placement.num_experts = num_experts;
  std::int32_t next = 0;
  for (std::int32_t device = 0; device < num_devices; ++device) {
    const std::int32_t size =
        num_experts / num_devices + (device < num_experts % num_devices ? 1 : 0);
    auto& experts = placement.experts_of_device.emplace_back(static_cast<std::size_t>(size));
    std::iota(experts.begin(), experts.end(), next);
    next += size;
  }
  return placement;
}

}  // namespace coterie::placement
