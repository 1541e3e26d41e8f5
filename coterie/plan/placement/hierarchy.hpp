// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/plan/placement/multi_start.hpp"

namespace coterie::placement {

/// Shares items out among nodes first, so that tokens reach few nodes, then inside each node among
/// its devices (consecutive numbers). `num_nodes` divides the problem's devices. Nodes are held to
/// a tighter load limit than devices, else a node at its limit could not be balanced inside; it is
/// tightened until devices keep theirs. The score is that of the devices.
Refined search_nodes_first(const SearchProblem& problem, std::int32_t num_nodes,
                           const Effort& effort);

}  // namespace coterie::placement
