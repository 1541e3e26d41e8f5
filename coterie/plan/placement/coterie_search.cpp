// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/coterie_search.hpp"

#include "coterie/plan/placement/seeded_greedy.hpp"

namespace coterie::placement {

LayerPlacement place_coterie(const routing::ExpertSets& sets, const PlacementOptions& options,
                             std::int32_t layer) {
  return place_occult(sets, options, layer);
}

}  // namespace coterie::placement
