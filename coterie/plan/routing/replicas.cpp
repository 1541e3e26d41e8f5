// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/replicas.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::routing {
namespace {

double max_over_mean(const std::vector<std::uint64_t>& counts) {
  const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  if (total == 0) {
    return 0;
  }
  const auto most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  return most * static_cast<double>(counts.size()) / static_cast<double>(total);
}

void add_counts(std::vector<std::uint64_t>& sum, const std::vector<std::uint64_t>& counts) {
  for (std::size_t d = 0; d < sum.size(); ++d) {
    sum[d] += counts[d];
  }
}

/// Shared by both ways to count: `devices_of(set, devices)` fills in one device an expert.
template <typename DevicesOf>
ReplicaStats count_with(const ExpertSets& sets, std::int32_t num_devices,
                        const DevicesOf& devices_of) {
  COTERIE_REQUIRE(num_devices > 0, "the number of devices is ", num_devices);
  ReplicaStats stats;
  stats.picks_of_device.resize(static_cast<std::size_t>(num_devices));
  stats.replicas_of_device.resize(static_cast<std::size_t>(num_devices));
  std::vector<std::size_t> last_set(static_cast<std::size_t>(num_devices), sets.num_sets());
  std::vector<std::int32_t> devices;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    devices.resize(set.size());
    devices_of(set, std::span(devices));
    for (const std::int32_t device : devices) {
      const auto d = static_cast<std::size_t>(device);
      stats.picks_of_device[d] += sets.tokens[s];
      if (last_set[d] != s) {
        last_set[d] = s;
        stats.replicas_of_device[d] += sets.tokens[s];
      }
    }
    stats.num_tokens += sets.tokens[s];
    stats.num_picks += std::uint64_t{sets.tokens[s]} * set.size();
  }
  stats.num_replicas = std::accumulate(stats.replicas_of_device.begin(),
                                       stats.replicas_of_device.end(), std::uint64_t{0});
  return stats;
}

}  // namespace

double ReplicaStats::replicas_per_token() const {
  return num_tokens == 0 ? 0 : static_cast<double>(num_replicas) / static_cast<double>(num_tokens);
}

double ReplicaStats::load_imbalance() const {
  return max_over_mean(picks_of_device);
}

double ReplicaStats::receive_imbalance() const {
  return max_over_mean(replicas_of_device);
}

double ReplicaStats::bottleneck_replicas() const {
  return replicas_per_token() * receive_imbalance();
}

ReplicaStats& ReplicaStats::operator+=(const ReplicaStats& other) {
  if (picks_of_device.empty()) {
    return *this = other;
  }
  COTERIE_CHECK(picks_of_device.size() == other.picks_of_device.size(), picks_of_device.size(),
                " and ", other.picks_of_device.size(), " devices");
  num_tokens += other.num_tokens;
  num_picks += other.num_picks;
  num_replicas += other.num_replicas;
  add_counts(picks_of_device, other.picks_of_device);
  add_counts(replicas_of_device, other.replicas_of_device);
  return *this;
}

Json to_json(const ReplicaStats& stats) {
  return Json{{"num_tokens", stats.num_tokens},
              {"num_picks", stats.num_picks},
              {"num_replicas", stats.num_replicas},
              {"replicas_per_token", stats.replicas_per_token()},
              {"load_imbalance", stats.load_imbalance()},
              {"receive_imbalance", stats.receive_imbalance()},
              {"bottleneck_replicas", stats.bottleneck_replicas()},
              {"picks_of_device", stats.picks_of_device},
              {"replicas_of_device", stats.replicas_of_device}};
}

ReplicaStats count_replicas(const ExpertSets& sets, std::span<const std::int32_t> device_of_expert,
                            std::int32_t num_devices) {
  COTERIE_REQUIRE(device_of_expert.size() == static_cast<std::size_t>(sets.num_experts),
                  "a placement of ", device_of_expert.size(), " experts meets sets of ",
                  sets.num_experts);
  for (std::size_t e = 0; e < device_of_expert.size(); ++e) {
    COTERIE_REQUIRE(device_of_expert[e] >= 0 && device_of_expert[e] < num_devices, "expert ", e,
                    " is on device ", device_of_expert[e], ", not in [0, ", num_devices, ")");
  }
  return count_with(sets, num_devices,
                    [&](std::span<const std::uint16_t> set, std::span<std::int32_t> devices) {
                      for (std::size_t i = 0; i < set.size(); ++i) {
                        devices[i] = device_of_expert[set[i]];
                      }
                    });
}

ReplicaStats count_replicas(const ExpertSets& sets, std::int32_t num_devices,
                            const DeviceChooser& chooser) {
  return count_with(sets, num_devices,
                    [&](std::span<const std::uint16_t> set, std::span<std::int32_t> devices) {
                      chooser(set, devices);
                      for (const std::int32_t device : devices) {
                        COTERIE_CHECK(device >= 0 && device < num_devices, "chooser gave device ",
                                      device, " of ", num_devices);
                      }
                    });
}

}  // namespace coterie::routing
