// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "coterie/plan/placement/refine.hpp"

namespace coterie::placement {

/// How hard a search tries, and its random numbers. The result does not depend on num_threads.
struct Effort {
  std::int32_t num_starts = 8;
  std::size_t sample_sets = 20000;
  std::int32_t num_threads = 1;
  std::uint64_t seed = 0;
  std::uint64_t first_stream = 0;  ///< streams from here on are this search's
};

/// Every `stride`-th token of the sets in their order, so that the sample holds each set in
/// proportion; about `num_tokens` tokens. Equal sets are counted together.
routing::ExpertSets sample_tokens(const routing::ExpertSets& sets, std::uint64_t num_tokens);

/// Explores from several starts, on a sample where there are more sets than `sample_sets`, goes on
/// from the best few, then polishes those on all sets. Returns the best.
Refined search_from_starts(const SearchProblem& problem, const Effort& effort);

}  // namespace coterie::placement
