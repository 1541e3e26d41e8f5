// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/refine.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "coterie/plan/placement/multi_start.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

SearchProblem problem_of(const routing::ExpertSets& sets, std::int32_t num_devices) {
  SearchProblem problem;
  problem.sets = &sets;
  for (const std::uint64_t load : sets.expert_loads()) {
    problem.loads.push_back(static_cast<std::int64_t>(load));
  }
  problem.num_devices = num_devices;
  return problem;
}

/// Least rows of any placement with equal sizes, by dynamic programming over subsets of experts:
/// the best way to fill d devices with a subset, a device costing the tokens that touch it.
std::int64_t least_rows(const routing::ExpertSets& sets, std::int32_t num_devices) {
  const auto num_experts = static_cast<unsigned>(sets.num_experts);
  const unsigned size = num_experts / static_cast<unsigned>(num_devices);
  const unsigned all = (1U << num_experts) - 1;
  std::vector<std::int64_t> touching(all + 1);  // tokens with an expert in the subset
  for (unsigned mask = 1; mask <= all; ++mask) {
    if (std::popcount(mask) == static_cast<int>(size)) {
      for (std::size_t s = 0; s < sets.num_sets(); ++s) {
        for (const std::uint16_t e : sets.set(s)) {
          if ((mask >> e & 1U) != 0) {
            touching[mask] += sets.tokens[s];
            break;
          }
        }
      }
    }
  }
  std::vector<std::int64_t> best(all + 1, std::numeric_limits<std::int64_t>::max());
  best[0] = 0;
  for (unsigned mask = 1; mask <= all; ++mask) {
    if (std::popcount(mask) % static_cast<int>(size) != 0) {
      continue;
    }
    const unsigned lowest = mask & (0U - mask);  // lies on the device added last
    const unsigned rest = mask ^ lowest;
    for (unsigned part = rest;; part = (part - 1) & rest) {
      if (std::popcount(part) == static_cast<int>(size) - 1) {
        const unsigned device = part | lowest;
        best[mask] = std::min(best[mask], best[mask ^ device] + touching[device]);
      }
      if (part == 0) {
        break;
      }
    }
  }
  return best[all];
}

TEST(Refine, FindsTheExactOptimumOfSmallCases) {
  Random random(21);
  int found = 0;
  int descent_found = 0;
  for (int round = 0; round < 10; ++round) {
    const auto sets = testing::random_sets(random, 12, 3, 400);
    const auto problem = problem_of(sets, 4);
    const std::int64_t optimum = least_rows(sets, 4);
    Effort effort;
    effort.seed = static_cast<std::uint64_t>(round);
    const Refined best = search_from_starts(problem, effort);
    EXPECT_GE(best.score.primary, optimum);
    EXPECT_EQ(best.score.primary,
              static_cast<std::int64_t>(testing::count_rows(sets, best.device_of)));
    found += best.score.primary == optimum ? 1 : 0;
    const Refined descended = descend(problem, contiguous_placement(12, 4).device_of_expert(), 8);
    EXPECT_GE(descended.score.primary, optimum);
    EXPECT_LE(descended.score.primary,
              score_of(problem, contiguous_placement(12, 4).device_of_expert()).primary);
    descent_found += descended.score.primary == optimum ? 1 : 0;
  }
  EXPECT_EQ(found, 10);
  EXPECT_GE(descent_found, 3);  // one start with passes alone often gets there
}

TEST(Refine, FindsTheOptimumOfSixteenExperts) {
  Random random(22);
  const auto sets = testing::random_sets(random, 16, 4, 200);
  Effort effort;
  EXPECT_EQ(search_from_starts(problem_of(sets, 4), effort).score.primary, least_rows(sets, 4));
}

TEST(Refine, ScoreCountsLoadFirst) {
  const auto sets = routing::make_expert_sets(std::vector<std::uint16_t>{0, 1, 0, 1, 2, 3}, 2, 4);
  auto problem = problem_of(sets, 2);
  problem.load_limit = 3;
  const Score together = score_of(problem, {0, 0, 1, 1});
  EXPECT_EQ(together, (Score{1, 3, 2}));
  const Score apart = score_of(problem, {0, 1, 0, 1});
  EXPECT_EQ(apart, (Score{0, 6, 3}));
  EXPECT_LT(apart, together);
  EXPECT_EQ(descend(problem, {0, 0, 1, 1}, 2).score.excess, 0);
}

TEST(Refine, KeepsFamiliesApart) {
  Random random(23);
  const auto sets = testing::random_sets(random, 12, 3, 300);
  auto problem = problem_of(sets, 3);
  problem.family = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
  const std::vector<std::int32_t> start = {0, 1, 0, 1, 0, 1, 0, 2, 1, 2, 1, 2};
  const auto explored = explore(problem, start, 300, random);
  for (std::size_t e = 0; e < 12; e += 2) {
    EXPECT_NE(explored.device_of[e], explored.device_of[e + 1]);
  }
  EXPECT_LE(explored.score, score_of(problem, start));
}

TEST(Refine, BottleneckLowersTheBusiestDevice) {
  Random random(24);
  const auto sets = testing::random_sets(random, 16, 4, 2000);
  auto problem = problem_of(sets, 4);
  const auto mean = search_from_starts(problem, {});
  problem.objective = Objective::kBottleneck;
  const auto bottleneck = search_from_starts(problem, {});
  EXPECT_LT(bottleneck.score.primary, mean.score.secondary);
  EXPECT_GE(bottleneck.score.secondary, mean.score.primary);
}

TEST(Refine, MovesWhereSizesDiffer) {
  // Five experts on two devices; {0,1,2} and {3,4} belong together but the start is split 2+3.
  const auto sets =
      routing::make_expert_sets(std::vector<std::uint16_t>{0, 1, 1, 2, 0, 2, 3, 4, 3, 4}, 2, 5);
  const auto best = descend(problem_of(sets, 2), {0, 0, 1, 1, 1}, 4);
  EXPECT_EQ(best.score.primary, 5);
}

}  // namespace
}  // namespace coterie::placement
