// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/measure.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/replica_chooser.hpp"

namespace coterie::placement {
namespace {

double max_over_mean(const std::vector<std::uint64_t>& values) {
  const std::uint64_t sum = std::accumulate(values.begin(), values.end(), std::uint64_t{0});
  if (sum == 0) {
    return 0;
  }
  const auto largest = static_cast<double>(*std::max_element(values.begin(), values.end()));
  return largest * static_cast<double>(values.size()) / static_cast<double>(sum);
}

}  // namespace

DeviceCounts count_devices(const LayerPlacement& placement, const routing::ExpertSets& sets) {
  COTERIE_REQUIRE(placement.num_experts == sets.num_experts, "the placement has ",
                  placement.num_experts, " experts, the routing ", sets.num_experts);
  const ReplicaChooser chooser(placement);
  const auto num_devices = static_cast<std::size_t>(placement.num_devices());
  DeviceCounts counts;
  counts.rows.resize(num_devices);
  counts.picks.resize(num_devices);
  std::vector<std::size_t> seen_at(num_devices, sets.num_sets());
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> devices;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    ids.assign(set.begin(), set.end());
    devices.resize(ids.size());
    chooser.choose(ids, devices);
    counts.num_tokens += sets.tokens[s];
    for (const std::int32_t device : devices) {
      const auto d = static_cast<std::size_t>(device);
      counts.picks[d] += sets.tokens[s];
      if (seen_at[d] != s) {
        seen_at[d] = s;
        counts.rows[d] += sets.tokens[s];
      }
    }
  }
  return counts;
}

LayerFigures measure_placement(const LayerPlacement& placement, const routing::ExpertSets& sets) {
  const DeviceCounts counts = count_devices(placement, sets);
  LayerFigures figures;
  figures.num_tokens = counts.num_tokens;
  if (counts.num_tokens == 0) {
    return figures;
  }
  const std::uint64_t rows =
      std::accumulate(counts.rows.begin(), counts.rows.end(), std::uint64_t{0});
  figures.replicas = static_cast<double>(rows) / static_cast<double>(counts.num_tokens);
  figures.receive_imbalance = max_over_mean(counts.rows);
  figures.bottleneck_replicas = figures.replicas * figures.receive_imbalance;
  figures.load_imbalance = max_over_mean(counts.picks);
  return figures;
}

}  // namespace coterie::placement
