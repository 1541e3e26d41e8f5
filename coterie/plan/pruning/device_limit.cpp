// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/device_limit.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::pruning {
namespace {

using Devices = std::vector<std::int32_t>;

/// Number of subsets of `size` out of `count`, at most `limit` + 1.
std::int64_t num_subsets(std::int64_t count, std::int64_t size, std::int64_t limit) {
  std::int64_t number = 1;
  for (std::int64_t i = 1; i <= size; ++i) {
    number = number * (count - size + i) / i;
    if (number > limit) {
      return limit + 1;
    }
  }
  return number;
}

/// The next subset in lexicographic order of ascending `places` out of [0, count); false after the
/// last.
bool next_subset(std::vector<std::size_t>& places, std::size_t count) {
  const std::size_t size = places.size();
  for (std::size_t i = size; i-- > 0;) {
    if (places[i] < count - size + i) {
      ++places[i];
      std::iota(places.begin() + static_cast<std::ptrdiff_t>(i) + 1, places.end(), places[i] + 1);
      return true;
    }
  }
  return false;
}

}  // namespace

DeviceLimit::DeviceLimit(const placement::LayerPlacement& placement, DeviceChoice choice,
                         const Budget& budget)
    : num_experts_(placement.num_experts),
      single_copies_(placement.has_single_copies()),
      choice_(choice),
      budget_(budget) {
  placement::check_layer_placement(placement, "pruning");
  PruningOptions options;
  options.device_choice = choice;
  options.budget = budget;
  check_pruning_options(options);
  devices_of_ = placement.devices_of_expert();
}

bool DeviceLimit::is_on(std::int32_t expert, std::span<const std::int32_t> devices) const {
  const Devices& homes = devices_of_[static_cast<std::size_t>(expert)];
  return std::any_of(homes.begin(), homes.end(), [&](std::int32_t device) {
    return std::find(devices.begin(), devices.end(), device) != devices.end();
  });
}

double DeviceLimit::kept_mass(const Picks& picks, std::span<const std::int32_t> devices) const {
  double mass = 0;
  for (std::size_t i = 0; i < picks.ids.size(); ++i) {
    if (picks.ids[i] >= 0 && is_on(picks.ids[i], devices)) {
      mass += static_cast<double>(picks.scores[i]);
    }
  }
  return mass;
}

Devices DeviceLimit::choose(const Picks& picks) const {
  COTERIE_CHECK(picks.ids.size() == picks.scores.size(), picks.ids.size(), picks.scores.size());
  for (const std::int32_t id : picks.ids) {
    COTERIE_CHECK(id >= -1 && id < num_experts_, id, num_experts_);
  }
  return choice_ == DeviceChoice::kFirstSeen ? choose_first_seen(picks) : choose_kept_mass(picks);
}

Devices DeviceLimit::choose_first_seen(const Picks& picks) const {
  Devices devices;
  for (const std::int32_t id : picks.ids) {
    if (!budget_.is_unlimited() && std::ssize(devices) >= budget_.max_devices) {
      break;
    }
    if (id >= 0 && !is_on(id, devices)) {
      devices.push_back(devices_of_[static_cast<std::size_t>(id)].front());
    }
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

Devices DeviceLimit::candidates(const Picks& picks) const {
  Devices devices;
  for (const std::int32_t id : picks.ids) {
    if (id >= 0) {
      const Devices& homes = devices_of_[static_cast<std::size_t>(id)];
      devices.insert(devices.end(), homes.begin(), homes.end());
    }
  }
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

Devices DeviceLimit::choose_kept_mass(const Picks& picks) const {
  const Devices all = candidates(picks);
  Devices devices;
  if (all.empty()) {
    return devices;
  }
  if (budget_.is_unlimited() || (single_copies_ && std::ssize(all) <= budget_.max_devices)) {
    devices = all;
  } else if (single_copies_) {
    devices = largest(picks, all);
  } else {
    devices = best_set(picks, all);
  }
  if (!budget_.is_unlimited() && budget_.min_share > 0) {
    drop(picks, budget_.min_share, devices);
  }
  return devices;
}

Devices DeviceLimit::best_set(const Picks& picks, const Devices& devices) const {
  const auto count = std::ssize(devices);
  const std::int64_t largest = std::min<std::int64_t>(budget_.max_devices, count);
  Devices best;
  double best_mass = -1;
  std::int64_t sets = 0;
  for (std::int64_t size = 1; size <= largest; ++size) {
    sets += num_subsets(count, size, kMaxSets);
    if (sets > kMaxSets) {
      return greedy_set(picks, devices);
    }
    std::vector<std::size_t> places(static_cast<std::size_t>(size));
    std::iota(places.begin(), places.end(), std::size_t{0});
    Devices subset(places.size());
    do {
      std::transform(places.begin(), places.end(), subset.begin(),
                     [&](std::size_t place) { return devices[place]; });
      if (const double mass = kept_mass(picks, subset); mass > best_mass) {
        best = subset;
        best_mass = mass;
      }
    } while (next_subset(places, devices.size()));
  }
  return best;
}

Devices DeviceLimit::largest(const Picks& picks, Devices devices) const {
  std::vector<double> mass_of(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    mass_of[i] = kept_mass(picks, std::span(&devices[i], 1));
  }
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return mass_of[a] > mass_of[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(budget_.max_devices)));
  std::sort(order.begin(), order.end());
  Devices chosen(order.size());
  std::transform(order.begin(), order.end(), chosen.begin(),
                 [&](std::size_t i) { return devices[i]; });
  return chosen;
}

Devices DeviceLimit::greedy_set(const Picks& picks, const Devices& devices) const {
  Devices chosen;
  double mass = 0;
  while (std::ssize(chosen) < budget_.max_devices) {
    std::int32_t best = -1;
    double best_mass = chosen.empty() ? -1 : mass;
    for (const std::int32_t device : devices) {
      chosen.push_back(device);
      const double with = kept_mass(picks, chosen);
      chosen.pop_back();
      if (with > best_mass) {
        best = device;
        best_mass = with;
      }
    }
    if (best < 0) {
      break;  // the others add nothing
    }
    chosen.push_back(best);
    mass = best_mass;
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<double> DeviceLimit::drop(const Picks& picks, double min_share,
                                      Devices& devices) const {
  double total = 0;
  for (std::size_t i = 0; i < picks.ids.size(); ++i) {
    total += picks.ids[i] >= 0 ? static_cast<double>(picks.scores[i]) : 0;
  }
  std::vector<double> thresholds;
  while (std::ssize(devices) > budget_.min_devices) {
    const double mass = kept_mass(picks, devices);
    std::size_t least = 0;
    double least_added = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      Devices others = devices;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const double added = mass - kept_mass(picks, others);
      if (i == 0 || added <= least_added) {  // of equals the highest device goes
        least = i;
        least_added = added;
      }
    }
    const double share = total > 0 ? least_added / total : 0;
    if (share >= min_share) {
      break;
    }
    devices.erase(devices.begin() + static_cast<std::ptrdiff_t>(least));
    thresholds.push_back(std::max(share, thresholds.empty() ? 0 : thresholds.back()));
  }
  return thresholds;
}

std::vector<double> DeviceLimit::drop_thresholds(const Picks& picks) const {
  Devices devices = choose(picks);
  return drop(picks, std::numeric_limits<double>::infinity(), devices);
}

}  // namespace coterie::pruning
