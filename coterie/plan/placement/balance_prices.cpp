// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/balance_prices.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/plan/placement/measure.hpp"
#include "coterie/plan/placement/replica_chooser.hpp"

namespace coterie::placement {
namespace {

/// The sets that hold an expert with several copies; load of the others goes to `fixed`.
routing::ExpertSets sets_with_a_choice(const LayerPlacement& placement,
                                       const routing::ExpertSets& sets,
                                       std::vector<std::uint64_t>& fixed) {
  const auto devices_of = placement.devices_of_expert();
  routing::ExpertSets chosen;
  chosen.num_experts = sets.num_experts;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    if (std::ranges::any_of(set, [&](std::uint16_t e) { return devices_of[e].size() > 1; })) {
      chosen.experts.insert(chosen.experts.end(), set.begin(), set.end());
      chosen.offsets.push_back(static_cast<std::uint32_t>(chosen.experts.size()));
      chosen.tokens.push_back(sets.tokens[s]);
    } else {
      for (const std::uint16_t e : set) {
        fixed[static_cast<std::size_t>(devices_of[e][0])] += sets.tokens[s];
      }
    }
  }
  return chosen;
}

/// Price steps as whole numbers: prices must be the same on every machine.
std::vector<std::uint32_t> moved_prices(const std::vector<std::uint32_t>& prices,
                                        const std::vector<std::uint64_t>& load, std::int64_t step) {
  const auto total =
      static_cast<std::int64_t>(std::accumulate(load.begin(), load.end(), std::uint64_t{0}));
  const auto count = static_cast<std::int64_t>(load.size());
  std::vector<std::int64_t> moved(prices.begin(), prices.end());
  for (std::size_t d = 0; d < load.size(); ++d) {
    const std::int64_t above = static_cast<std::int64_t>(load[d]) * count - total;
    moved[d] += step * above / std::max<std::int64_t>(1, total);
  }
  const std::int64_t lowest = *std::ranges::min_element(moved);
  std::vector<std::uint32_t> result;
  for (const std::int64_t price : moved) {
    result.push_back(static_cast<std::uint32_t>(price - lowest));
  }
  return result;
}

}  // namespace

std::vector<std::uint64_t> balance_prices(LayerPlacement& placement,
                                          const routing::ExpertSets& sets, int num_rounds) {
  const auto num_devices = static_cast<std::size_t>(placement.num_devices());
  std::vector<std::uint64_t> fixed(num_devices);
  const auto open = sets_with_a_choice(placement, sets, fixed);
  std::vector<std::uint64_t> best_load;
  auto best_prices = placement.device_prices;
  auto prices = best_prices;
  prices.resize(num_devices);
  for (int round = 0; round <= num_rounds; ++round) {
    placement.device_prices = prices;
    auto load = count_devices(placement, open).picks;
    for (std::size_t d = 0; d < num_devices; ++d) {
      load[d] += fixed[d];
    }
    if (best_load.empty() ||
        *std::ranges::max_element(load) < *std::ranges::max_element(best_load)) {
      best_load = load;
      best_prices = prices;
    }
    if (open.num_sets() == 0) {
      break;
    }
    const std::int64_t step = std::int64_t{2} * ReplicaChooser::kNoise * 4 / (4 + round);
    prices = moved_prices(prices, load, step);
  }
  placement.device_prices = best_prices;
  if (std::ranges::all_of(best_prices, [](std::uint32_t p) { return p == 0; })) {
    placement.device_prices.clear();
  }
  return best_load;
}

}  // namespace coterie::placement
