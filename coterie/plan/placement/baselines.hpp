// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/routing/routing.hpp"

/// The placements that ours is compared with. Each takes the layer's sets (for the number of
/// experts and, where it looks at routing at all, the counts), the options and the layer's number.
/// Devices differ by at most one slot. Extra slots, where asked for, go to the most loaded experts.
namespace coterie::placement {

LayerPlacement place_contiguous(const routing::ExpertSets& sets, const PlacementOptions& options,
                                std::int32_t layer);

/// Experts shuffled by (seed, layer), then dealt out in order.
LayerPlacement place_random(const routing::ExpertSets& sets, const PlacementOptions& options,
                            std::int32_t layer);

/// Expert e on device e mod num_devices.
LayerPlacement place_round_robin(const routing::ExpertSets& sets, const PlacementOptions& options,
                                 std::int32_t layer);

/// Load alone, as DeepSeek's EPLB packs: slots in descending load, each on the least loaded device
/// that has room and no copy of it; load is shared evenly among copies. Ties: lowest id.
LayerPlacement place_load_only(const routing::ExpertSets& sets, const PlacementOptions& options,
                               std::int32_t layer);

}  // namespace coterie::placement
