// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/coterie_search.hpp"

#include <algorithm>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/hierarchy.hpp"
#include "coterie/plan/placement/load_limit.hpp"
#include "coterie/plan/placement/multi_start.hpp"
#include "coterie/plan/placement/replicate.hpp"
#include "coterie/plan/placement/slots.hpp"

namespace coterie::placement {

LayerPlacement place_coterie(const routing::ExpertSets& sets, const PlacementOptions& options,
                             std::int32_t layer) {
  check_hottest_expert(sets, options, layer);
  const Effort effort{options.num_starts, options.sample_sets, options.num_threads, options.seed,
                      static_cast<std::uint64_t>(layer) << 20U};
  if (options.num_redundant_experts > 0) {
    return place_with_copies(sets, options, layer, effort);
  }
  SearchProblem problem;
  problem.sets = &sets;
  for (const std::uint64_t load : sets.expert_loads()) {
    problem.loads.push_back(static_cast<std::int64_t>(load));
  }
  problem.num_devices = options.num_devices;
  problem.load_limit = load_limit_of(sets, options);
  problem.objective = options.objective;
  const Refined found = options.num_nodes > 1
                            ? search_nodes_first(problem, options.num_nodes, effort)
                            : search_from_starts(problem, effort);
  check_load_kept(problem, found, options, layer);
  return from_device_of_expert(found.device_of, options.num_devices);
}

}  // namespace coterie::placement
