// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Sets placement.device_prices so that the busiest device of the sets is loaded as little as the
/// choice among minimum covers allows: prices of devices above the mean rise, others fall, with
/// shrinking steps; the best prices met are kept. Prices never change how many devices a token
/// reaches. Leaves single copies alone. Returns the (token, expert) pairs of each device.
std::vector<std::uint64_t> balance_prices(LayerPlacement& placement,
                                          const routing::ExpertSets& sets, int num_rounds);

}  // namespace coterie::placement
