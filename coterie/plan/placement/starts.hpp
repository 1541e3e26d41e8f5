// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/plan/placement/refine.hpp"

namespace coterie::placement {

/// Seeds first: the pair that works together least, then ever the item that works least with its
/// most related seed (farthest point sampling); devices then take turns, each taking the free item
/// that works most with those it holds.
std::vector<std::int32_t> farthest_point_start(const SearchProblem& problem);

/// Swap search on pair counts alone (every pair of a set its own two-item set) from a start.
std::vector<std::int32_t> clique_swap_start(const SearchProblem& problem,
                                            const std::vector<std::int32_t>& start);

/// Items in descending load, each to the least loaded device with room.
std::vector<std::int32_t> even_load_start(const SearchProblem& problem);

/// Swaps items until no device holds two of one family. kInfeasible if a family has more items than
/// there are devices.
void separate_families(const SearchProblem& problem, std::vector<std::int32_t>& device_of);

/// Start number `index`: contiguous, Occult's Algorithm 1, farthest point, clique swap, even load,
/// then random ones. Device sizes differ by at most one; families are apart.
std::vector<std::int32_t> make_start(const SearchProblem& problem, std::size_t index,
                                     Random& random);

}  // namespace coterie::placement
