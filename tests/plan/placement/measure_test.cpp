// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

TEST(Measure, CountsAHandMadeCase) {
  // Two devices of two experts; 3 tokens {0,1}, 1 token {1,2}, 2 tokens {3}.
  routing::ExpertSets sets = routing::make_expert_sets(
      std::vector<std::uint16_t>{0, 1, 1, 0, 0, 1, 1, 2, 3, routing::kNoExpert, 3,
                                 routing::kNoExpert},
      2, 4);
  const auto counts = count_devices(contiguous_placement(4, 2), sets);
  EXPECT_EQ(counts.num_tokens, 6U);
  EXPECT_EQ(counts.rows, (std::vector<std::uint64_t>{4, 3}));
  EXPECT_EQ(counts.picks, (std::vector<std::uint64_t>{7, 3}));
  const auto figures = measure_placement(contiguous_placement(4, 2), sets);
  EXPECT_DOUBLE_EQ(figures.replicas, 7.0 / 6);
  EXPECT_DOUBLE_EQ(figures.load_imbalance, 7.0 / 5);
  EXPECT_DOUBLE_EQ(figures.receive_imbalance, 4.0 / 3.5);
  EXPECT_DOUBLE_EQ(figures.bottleneck_replicas, 7.0 / 6 * 4.0 / 3.5);
}

TEST(Measure, EqualsTheObviousCount) {
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    const auto sets = testing::random_sets(random, 12, 3, 200);
    const auto placement = testing::random_placement(random, 12, 5);
    const auto counts = count_devices(placement, sets);
    std::uint64_t rows = 0;
    for (const auto count : counts.rows) {
      rows += count;
    }
    EXPECT_EQ(rows, testing::count_rows(sets, placement.device_of_expert()));
  }
}

TEST(Measure, NoTokensGiveZeros) {
  routing::ExpertSets empty;
  empty.num_experts = 8;
  EXPECT_EQ(measure_placement(contiguous_placement(8, 4), empty), LayerFigures{});
}

TEST(Measure, RefusesAnotherModel) {
  routing::ExpertSets sets;
  sets.num_experts = 9;
  EXPECT_THROW(measure_placement(contiguous_placement(8, 4), sets), Error);
}

}  // namespace
}  // namespace coterie::placement
