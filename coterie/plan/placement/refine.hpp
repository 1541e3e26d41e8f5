// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/placement/swap_state.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// What a search works on. Items are experts, or slots where experts have copies.
struct SearchProblem {
  const routing::ExpertSets* sets = nullptr;  ///< over items; may be a sample
  std::vector<std::int64_t> loads;            ///< [num_items] (token, item) pairs, of all rows
  std::int32_t num_devices = 1;
  /// No device may be loaded above this, in units of `loads`.
  double load_limit = std::numeric_limits<double>::infinity();
  /// Units of the sets per unit of `loads`: below 1 where the sets are a sample.
  double load_scale = 1;
  Objective objective = Objective::kMean;
  /// [num_items] items of one family stay on different devices; empty: no such law.
  std::vector<std::int32_t> family;
  /// Above 0: items stay inside their block of so many consecutive devices (a node).
  std::int32_t devices_a_block = 0;
};

/// How good a placement is; less is better. Load above the limit counts before everything else.
struct Score {
  std::int64_t excess = 0;     ///< sum over devices of load above the limit, rounded up
  std::int64_t primary = 0;    ///< rows of all devices (mean) or of the busiest (bottleneck)
  std::int64_t secondary = 0;  ///< the other of the two

  auto operator<=>(const Score&) const = default;
};

/// Score of a placement, counted from scratch.
Score score_of(const SearchProblem& problem, const std::vector<std::int32_t>& device_of);

struct Refined {
  std::vector<std::int32_t> device_of;
  Score score;
};

/// Best-swap descent, then Kernighan-Lin passes (every item moves at most once a pass, best first,
/// even uphill; the pass is rolled back to its best point) until a pass brings nothing.
/// Devices keep their sizes; where sizes differ, an item may also move from a larger to a smaller
/// device. `max_passes`: 0 = descent alone.
Refined descend(const SearchProblem& problem, std::vector<std::int32_t> start, int max_passes);

/// Tabu search for `num_steps` swaps with kicks where it stagnates, then descend().
Refined explore(const SearchProblem& problem, std::vector<std::int32_t> start,
                std::int64_t num_steps, Random& random);

}  // namespace coterie::placement
