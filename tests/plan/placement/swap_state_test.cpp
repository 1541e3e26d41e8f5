// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/swap_state.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "coterie/base/error.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

std::int64_t total_rows(const SwapState& state) {
  return std::accumulate(state.rows().begin(), state.rows().end(), std::int64_t{0});
}

TEST(SwapState, KnowsEveryEffectAsBruteForceCountsIt) {
  Random random(11);
  for (int round = 0; round < 30; ++round) {
    const auto num_experts = static_cast<std::int32_t>(4 + random.below(9));
    const auto num_devices = static_cast<std::int32_t>(2 + random.below(3));
    const auto top_k = static_cast<std::int32_t>(1 + random.below(4));
    const auto sets = testing::random_sets(random, num_experts, top_k, 60);
    SwapState state(sets,
                    testing::random_placement(random, num_experts, num_devices).device_of_expert(),
                    num_devices);
    for (int step = 0; step < 15; ++step) {
      const auto rows = static_cast<std::int64_t>(testing::count_rows(sets, state.device_of()));
      ASSERT_EQ(total_rows(state), rows);
      const std::size_t e = random.below(num_experts);
      const std::size_t f = random.below(num_experts);
      const auto a = static_cast<std::size_t>(state.device_of()[e]);
      const auto b = static_cast<std::size_t>(state.device_of()[f]);
      auto swapped = state.device_of();
      std::swap(swapped[e], swapped[f]);
      auto moved = state.device_of();
      moved[e] = static_cast<std::int32_t>(b);
      if (a != b) {
        const std::int64_t swap_change = state.rows_added(e, b) - state.rows_saved(e) +
                                         state.rows_kept(e, f) + state.rows_added(f, a) -
                                         state.rows_saved(f) + state.rows_kept(f, e);
        EXPECT_EQ(rows + swap_change,
                  static_cast<std::int64_t>(testing::count_rows(sets, swapped)));
        EXPECT_EQ(rows + state.rows_added(e, b) - state.rows_saved(e),
                  static_cast<std::int64_t>(testing::count_rows(sets, moved)));
        const std::int64_t rows_a = state.rows()[a];
        const std::int32_t change_a =
            state.rows_added(f, a) - state.rows_saved(e) + state.rows_kept(e, f);
        if (step % 2 == 0) {
          state.swap(e, f);
          EXPECT_EQ(state.rows()[a], rows_a + change_a);
        } else {
          state.move(e, b);
        }
      }
    }
  }
}

TEST(SwapState, StaysEqualToAFreshOne) {
  Random random(12);
  const auto sets = testing::random_sets(random, 16, 4, 500);
  SwapState state(sets, contiguous_placement(16, 4).device_of_expert(), 4);
  for (int step = 0; step < 200; ++step) {
    state.move(random.below(16), random.below(4));
  }
  const SwapState fresh(sets, state.device_of(), 4);
  EXPECT_EQ(state.rows(), fresh.rows());
  for (std::size_t e = 0; e < 16; ++e) {
    EXPECT_EQ(state.rows_saved(e), fresh.rows_saved(e));
    for (std::size_t d = 0; d < 4; ++d) {
      EXPECT_EQ(state.rows_added(e, d), fresh.rows_added(e, d));
    }
    for (std::size_t f = 0; f < 16; ++f) {
      if (f != e) {
        EXPECT_EQ(state.rows_kept(e, f), fresh.rows_kept(e, f));
      }
    }
  }
}

TEST(SwapState, RefusesMoreTokensThanItCanCount) {
  routing::ExpertSets sets;
  sets.num_experts = 2;
  sets.experts = {0, 1};
  sets.offsets = {0, 2};
  sets.tokens = {(1U << 30U) + 1};
  const std::vector<std::int32_t> device_of = {0, 1};
  EXPECT_THROW(SwapState(sets, device_of, 2), Error);
}

}  // namespace
}  // namespace coterie::placement
