// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Our algorithm (docs/design/006-exact-swap-search.md): swaps of experts between devices, their
/// exact effect on the objective known in O(1), from several starts; then all sets polish the best.
/// kInfeasible if the load cap cannot be kept.
LayerPlacement place_coterie(const routing::ExpertSets& sets, const PlacementOptions& options,
                             std::int32_t layer);

}  // namespace coterie::placement
