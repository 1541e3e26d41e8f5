// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/baselines.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/slots.hpp"

namespace coterie::placement {
namespace {

/// Number of copies of each expert: one, and an extra one at a time for the largest load per copy.
std::vector<std::int32_t> copies_by_load(std::span<const std::uint64_t> loads,
                                         const PlacementOptions& options) {
  std::vector<std::int32_t> copies(loads.size(), 1);
  for (std::int32_t extra = 0; extra < options.num_redundant_experts; ++extra) {
    std::size_t hottest = loads.size();
    for (std::size_t e = 0; e < loads.size(); ++e) {
      const auto per_copy = [&](std::size_t x) {
        return static_cast<double>(loads[x]) / copies[x];
      };
      if (copies[e] < options.num_devices &&
          (hottest == loads.size() || per_copy(e) > per_copy(hottest))) {
        hottest = e;
      }
    }
    ++copies[hottest];
  }
  return copies;
}

/// Places a copy of `expert` when every device with room holds it already: a full device without it
/// gives one of its other experts to a device with room. That one is as large at least, so it has
/// such an expert.
void exchange_in(LayerPlacement& placement, const std::vector<std::int32_t>& sizes,
                 std::int32_t expert) {
  const auto holds = [](const std::vector<std::int32_t>& held, std::int32_t e) {
    return std::ranges::find(held, e) != held.end();
  };
  auto& devices = placement.experts_of_device;
  std::size_t open = 0;
  while (devices[open].size() == static_cast<std::size_t>(sizes[open])) {
    ++open;
  }
  for (auto& full : devices) {
    if (holds(full, expert)) {
      continue;
    }
    for (std::int32_t& moved : full) {
      if (!holds(devices[open], moved)) {
        devices[open].push_back(moved);
        moved = expert;
        return;
      }
    }
  }
  fail(ErrorCode::kInternal, "no device can take a copy of expert ", expert);
}

}  // namespace

LayerPlacement place_contiguous(const routing::ExpertSets& sets, const PlacementOptions& options,
                                std::int32_t /*layer*/) {
  LayerPlacement placement = contiguous_placement(sets.num_experts, options.num_devices);
  add_hot_copies(placement, sets.expert_loads(), options.num_redundant_experts);
  return placement;
}

LayerPlacement place_random(const routing::ExpertSets& sets, const PlacementOptions& options,
                            std::int32_t layer) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(sets.num_experts));
  std::iota(order.begin(), order.end(), 0);
  Random random(options.seed, static_cast<std::uint64_t>(layer));
  random.shuffle(std::span(order));
  LayerPlacement placement = contiguous_placement(sets.num_experts, options.num_devices);
  for (auto& experts : placement.experts_of_device) {
    for (std::int32_t& expert : experts) {
      expert = order[static_cast<std::size_t>(expert)];
    }
    std::sort(experts.begin(), experts.end());
  }
  add_hot_copies(placement, sets.expert_loads(), options.num_redundant_experts);
  return placement;
}

LayerPlacement place_round_robin(const routing::ExpertSets& sets, const PlacementOptions& options,
                                 std::int32_t /*layer*/) {
  std::vector<std::int32_t> device_of(static_cast<std::size_t>(sets.num_experts));
  for (std::size_t e = 0; e < device_of.size(); ++e) {
    device_of[e] = static_cast<std::int32_t>(e) % options.num_devices;
  }
  LayerPlacement placement = from_device_of_expert(device_of, options.num_devices);
  add_hot_copies(placement, sets.expert_loads(), options.num_redundant_experts);
  return placement;
}

LayerPlacement place_load_only(const routing::ExpertSets& sets, const PlacementOptions& options,
                               std::int32_t /*layer*/) {
  const auto loads = sets.expert_loads();
  const auto copies = copies_by_load(loads, options);
  const auto per_copy = [&](std::int32_t e) {
    const auto i = static_cast<std::size_t>(e);
    return static_cast<double>(loads[i]) / copies[i];
  };
  std::vector<std::int32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return per_copy(a) > per_copy(b); });
  const auto sizes =
      even_sizes(sets.num_experts + options.num_redundant_experts, options.num_devices);
  LayerPlacement placement;
  placement.num_experts = sets.num_experts;
  placement.experts_of_device.resize(sizes.size());
  std::vector<double> load(sizes.size());
  for (const std::int32_t expert : order) {
    for (std::int32_t copy = 0; copy < copies[static_cast<std::size_t>(expert)]; ++copy) {
      std::size_t best = sizes.size();
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        const auto& held = placement.experts_of_device[d];
        const bool fits = held.size() < static_cast<std::size_t>(sizes[d]) &&
                          std::ranges::find(held, expert) == held.end();
        if (fits && (best == sizes.size() || load[d] < load[best])) {
          best = d;
        }
      }
      if (best == sizes.size()) {  // only devices that hold it have room left
        exchange_in(placement, sizes, expert);
        continue;
      }
      placement.experts_of_device[best].push_back(expert);
      load[best] += per_copy(expert);
    }
  }
  for (auto& experts : placement.experts_of_device) {
    std::sort(experts.begin(), experts.end());
  }
  return placement;
}

}  // namespace coterie::placement
