// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// [num_experts, num_experts] tokens that chose both experts (Occult, equation 3); diagonal 0.
Matrix<std::int64_t> pair_counts(const routing::ExpertSets& sets);

/// Occult's Algorithm 1 (ICML 2025, section 3.3). Devices are filled one after another: the first
/// opens with the pair that works together most, each further one with the expert that works least
/// with all placed ones; then a device takes the expert that works most with those it holds. Ties
/// go to the lowest id. The paper normalises counts by their largest, which changes no comparison;
/// we compare exact integer sums. `sizes`: experts of each device, > 0 (the paper: all equal).
LayerPlacement occult_placement(const Matrix<std::int64_t>& pairs,
                                const std::vector<std::int32_t>& sizes);

LayerPlacement place_occult(const routing::ExpertSets& sets, const PlacementOptions& options,
                            std::int32_t layer);

}  // namespace coterie::placement
