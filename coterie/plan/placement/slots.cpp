// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/slots.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::placement {
namespace {

bool holds(const std::vector<std::int32_t>& experts, std::int32_t expert) {
  return std::ranges::binary_search(experts, expert);
}

/// The device with the fewest slots (then the lowest load) that lacks the expert; -1 if only larger
/// devices do.
std::int32_t device_for_copy(const LayerPlacement& placement, const std::vector<double>& load,
                             std::int32_t expert) {
  std::size_t fewest = placement.experts_of_device[0].size();
  for (const auto& experts : placement.experts_of_device) {
    fewest = std::min(fewest, experts.size());
  }
  std::int32_t best = -1;
  for (std::size_t d = 0; d < load.size(); ++d) {
    const auto& experts = placement.experts_of_device[d];
    if (experts.size() == fewest && !holds(experts, expert) &&
        (best < 0 || load[d] < load[static_cast<std::size_t>(best)])) {
      best = static_cast<std::int32_t>(d);
    }
  }
  return best;
}

}  // namespace

std::vector<std::int32_t> even_sizes(std::int32_t total, std::int32_t num_devices) {
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(num_devices), total / num_devices);
  for (std::int32_t d = 0; d < total % num_devices; ++d) {
    ++sizes[static_cast<std::size_t>(d)];
  }
  return sizes;
}

LayerPlacement from_device_of_expert(std::span<const std::int32_t> device_of,
                                     std::int32_t num_devices) {
  LayerPlacement placement;
  placement.num_experts = static_cast<std::int32_t>(device_of.size());
  placement.experts_of_device.resize(static_cast<std::size_t>(num_devices));
  for (std::size_t e = 0; e < device_of.size(); ++e) {
    placement.experts_of_device[static_cast<std::size_t>(device_of[e])].push_back(
        static_cast<std::int32_t>(e));
  }
  return placement;
}

void add_hot_copies(LayerPlacement& placement, std::span<const std::uint64_t> loads,
                    std::int32_t num_extra) {
  std::vector<double> copies(loads.size());
  for (const auto& experts : placement.experts_of_device) {
    for (const std::int32_t expert : experts) {
      ++copies[static_cast<std::size_t>(expert)];
    }
  }
  const auto share = [&](std::int32_t expert) {
    const auto e = static_cast<std::size_t>(expert);
    return static_cast<double>(loads[e]) / copies[e];
  };
  for (std::int32_t extra = 0; extra < num_extra; ++extra) {
    std::vector<double> device_load;
    for (const auto& experts : placement.experts_of_device) {
      double load = 0;
      for (const std::int32_t expert : experts) {
        load += share(expert);
      }
      device_load.push_back(load);
    }
    std::int32_t hottest = -1;
    std::int32_t target = -1;
    for (std::int32_t e = 0; e < placement.num_experts; ++e) {
      if (hottest >= 0 && share(e) <= share(hottest)) {
        continue;
      }
      const std::int32_t device = device_for_copy(placement, device_load, e);
      if (device >= 0) {
        hottest = e;
        target = device;
      }
    }
    COTERIE_CHECK(hottest >= 0, "no room for extra slot ", extra);
    auto& experts = placement.experts_of_device[static_cast<std::size_t>(target)];
    experts.insert(std::ranges::lower_bound(experts, hottest), hottest);
    ++copies[static_cast<std::size_t>(hottest)];
  }
}

}  // namespace coterie::placement
