// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/balance_prices.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

PlacementOptions options_with(std::int32_t num_devices, std::int32_t num_redundant,
                              std::optional<double> load_cap) {
  PlacementOptions options;
  options.num_devices = num_devices;
  options.num_redundant_experts = num_redundant;
  options.load_cap = load_cap;
  options.num_starts = 3;
  return options;
}

TEST(Replicate, MoreCopiesNeedFewerDevicesATokenAndKeepTheCap) {
  Random random(41);
  const auto sets = testing::random_sets(random, 24, 4, 2000);
  double before = 1e9;
  for (const std::int32_t num_redundant : {0, 2, 6, 12}) {
    const auto placement = place_layer(sets, "coterie", options_with(4, num_redundant, 1.10));
    const auto figures = measure_placement(placement, sets);
    EXPECT_EQ(placement.num_slots(), 24 + num_redundant);
    EXPECT_LE(figures.load_imbalance, 1.10 + 1e-12);
    EXPECT_LT(figures.replicas, before);
    before = figures.replicas;
  }
}

TEST(Replicate, IsTheSameOnAnyNumberOfThreads) {
  Random random(42);
  const auto sets = testing::random_sets(random, 16, 3, 1500);
  PlacementOptions options = options_with(4, 5, 1.10);
  options.sample_sets = 400;
  const auto one = place_layer(sets, "coterie", options);
  options.num_threads = 3;
  EXPECT_EQ(place_layer(sets, "coterie", options), one);
}

TEST(Replicate, SharesAnExpertThatAloneBreaksTheCap) {
  // Every token picks expert 0, so alone it is twice the mean of four devices.
  std::vector<std::uint16_t> ids;
  for (std::uint16_t t = 0; t < 700; ++t) {
    const auto other = static_cast<std::uint16_t>(1 + t % 15);
    ids.insert(ids.end(), {0, other, static_cast<std::uint16_t>(1 + (t / 15 + other) % 15)});
    if (ids[ids.size() - 1] == ids[ids.size() - 2]) {
      ids.back() = static_cast<std::uint16_t>(1 + other % 15);
    }
  }
  const auto sets = routing::make_expert_sets(ids, 3, 16);
  EXPECT_THROW(place_layer(sets, "coterie", options_with(4, 0, 1.10)), Error);
  const auto placement = place_layer(sets, "coterie", options_with(4, 2, 1.10));
  EXPECT_GE(placement.devices_of_expert()[0].size(), 2U);
  EXPECT_LE(measure_placement(placement, sets).load_imbalance, 1.10 + 1e-12);
}

TEST(Replicate, RedundantExpertsResolveTheRealInfeasibleCase) {
  if (testing::real_data_folder().empty()) {
    GTEST_SKIP() << "no real routing data beside the repository";
  }
  const auto fit = testing::read_olmoe_halves(0).first;
  PlacementOptions options = options_with(16, 1, 1.10);
  options.num_starts = 1;
  const auto placement = place_layer(fit, "coterie", options);
  EXPECT_LE(measure_placement(placement, fit).load_imbalance, 1.10 + 1e-12);
}

TEST(Replicate, CopiesStayInsideNodesLaws) {
  Random random(43);
  const auto sets = testing::random_sets(random, 24, 4, 1000);
  PlacementOptions options = options_with(6, 5, 1.3);
  options.num_nodes = 2;
  const auto placement = place_layer(sets, "coterie", options);
  EXPECT_EQ(placement.num_slots(), 29);
  EXPECT_LE(measure_placement(placement, sets).load_imbalance, 1.3 + 1e-12);
}

TEST(BalancePrices, LevelLoadAndLeaveReplicasAlone) {
  Random random(44);
  const auto sets = testing::random_sets(random, 16, 4, 2000);
  PlacementOptions options = options_with(4, 12, std::nullopt);
  auto placement = place_layer(sets, "occult", options);
  const auto before = measure_placement(placement, sets);
  const auto load = balance_prices(placement, sets, 40);
  const auto after = measure_placement(placement, sets);
  EXPECT_EQ(after.replicas, before.replicas);
  EXPECT_LT(after.load_imbalance, before.load_imbalance);
  EXPECT_EQ(load, count_devices(placement, sets).picks);
}

}  // namespace
}  // namespace coterie::placement
