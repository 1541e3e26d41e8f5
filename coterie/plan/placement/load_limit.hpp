// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/placement/refine.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Largest load that the options allow a device, in (token, expert) pairs; infinite without a cap.
double load_limit_of(const routing::ExpertSets& sets, const PlacementOptions& options);

/// kInfeasible if experts alone are loaded so that no placement keeps the cap with the redundant
/// slots given: names the layer, the hottest expert, the bound (the least load of its device over
/// the mean) and the number of redundant experts that could do.
void check_hottest_expert(const routing::ExpertSets& sets, const PlacementOptions& options,
                          std::int32_t layer);

/// kInfeasible if the best point found is above the cap; names the layer and the load it reached.
void check_load_kept(const SearchProblem& problem, const Refined& found,
                     const PlacementOptions& options, std::int32_t layer);

}  // namespace coterie::placement
