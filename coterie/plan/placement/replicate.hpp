// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/multi_start.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Placement with options.num_redundant_experts extra slots (> 0). Experts too hot for the load
/// limit get the copies they need, and all slots are searched together; the other extra slots go
/// where a second copy saves most rows at no load above the limit. Then tokens are served by
/// minimum covers, slots are swapped for the serving found, and so on in turn while it gets better;
/// last, prices level the load. kInfeasible if the load cap is not kept on all sets.
LayerPlacement place_with_copies(const routing::ExpertSets& sets, const PlacementOptions& options,
                                 std::int32_t layer, const Effort& effort);

}  // namespace coterie::placement
