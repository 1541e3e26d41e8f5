// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/seeded_greedy.hpp"

#include <gtest/gtest.h>

#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

Matrix<std::int64_t> symmetric(std::size_t size,
                               const std::vector<std::array<std::int64_t, 3>>& entries) {
  Matrix<std::int64_t> pairs(size, size);
  for (const auto& [i, j, count] : entries) {
    pairs(static_cast<std::size_t>(i), static_cast<std::size_t>(j)) = count;
    pairs(static_cast<std::size_t>(j), static_cast<std::size_t>(i)) = count;
  }
  return pairs;
}

TEST(Occult, FollowsTheAlgorithmByHand) {
  // Largest pair (1,4) opens device 0. Works least with both: 2 (sum 1; 0: 3+2, 3: 2+9, 5: 6+0).
  // Device 1 then takes 5, which works most with 2.
  const auto pairs = symmetric(6, {{{1, 4, 50}},
                                   {{0, 1, 3}},
                                   {{0, 4, 2}},
                                   {{1, 2, 1}},
                                   {{1, 3, 2}},
                                   {{3, 4, 9}},
                                   {{1, 5, 6}},
                                   {{2, 5, 7}},
                                   {{2, 3, 4}},
                                   {{0, 3, 8}}});
  const auto placement = occult_placement(pairs, {2, 2, 2});
  EXPECT_EQ(placement.experts_of_device,
            (std::vector<std::vector<std::int32_t>>{{1, 4}, {2, 5}, {0, 3}}));
}

TEST(Occult, TiesGoToTheLowestId) {
  const auto placement = occult_placement(Matrix<std::int64_t>(6, 6), {3, 3});
  EXPECT_EQ(placement.experts_of_device,
            (std::vector<std::vector<std::int32_t>>{{0, 1, 2}, {3, 4, 5}}));
}

TEST(Occult, OneExpertADevice) {
  const auto pairs = symmetric(3, {{{1, 2, 5}}, {{0, 1, 1}}});
  // Device 0 opens with the first of the largest pair only.
  EXPECT_EQ(occult_placement(pairs, {1, 1, 1}).experts_of_device[0], std::vector<std::int32_t>{1});
}

TEST(Occult, UnequalSizes) {
  Random random(5);
  const auto sets = testing::random_sets(random, 10, 3, 300);
  PlacementOptions options;
  options.num_devices = 4;
  const auto placement = place_layer(sets, "occult", options);
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(placement.experts_of_device[d].size(), d < 2 ? 3U : 2U);
  }
}

TEST(Occult, ReproducesTheKnownFiguresOnRealRouting) {
  if (testing::real_data_folder().empty()) {
    GTEST_SKIP() << "no real routing data beside the repository";
  }
  const double expected[2][3] = {{2.90, 4.30, 5.61}, {2.36, 3.41, 4.91}};
  for (int which = 0; which < 2; ++which) {
    const auto [fit, held_out] = testing::read_olmoe_halves(which == 0 ? 0 : 15);
    for (int i = 0; i < 3; ++i) {
      PlacementOptions options;
      options.num_devices = 4 << i;
      const auto figures = measure_placement(place_layer(fit, "occult", options), held_out);
      EXPECT_NEAR(figures.replicas, expected[which][i], 0.005)
          << "layer " << which * 15 << ", " << options.num_devices << " devices";
    }
  }
}

}  // namespace
}  // namespace coterie::placement
