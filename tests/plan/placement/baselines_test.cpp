// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

TEST(Baselines, EveryAlgorithmKeepsTheLawsOfAPlacement) {
  Random random(7);
  for (const Algorithm& algorithm : algorithms()) {
    for (int round = 0; round < 12; ++round) {
      const auto num_experts = static_cast<std::int32_t>(3 + random.below(14));
      PlacementOptions options;
      options.num_devices = static_cast<std::int32_t>(1 + random.below(num_experts));
      options.num_redundant_experts = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(num_experts) * (options.num_devices - 1) + 1));
      options.load_cap.reset();
      const auto sets = testing::random_sets(random, num_experts, 2, 100);
      const auto placement = place_layer(sets, algorithm.name, options);
      EXPECT_EQ(placement.num_slots(), num_experts + options.num_redundant_experts);
      const auto [fewest, most] = std::ranges::minmax(placement.experts_of_device, {},
                                                      [](const auto& held) { return held.size(); });
      EXPECT_LE(most.size() - fewest.size(), 1U) << algorithm.name;
      EXPECT_EQ(placement, place_layer(sets, algorithm.name, options)) << algorithm.name;
    }
  }
}

TEST(Baselines, RoundRobinAndContiguous) {
  routing::ExpertSets sets;
  sets.num_experts = 5;
  PlacementOptions options;
  options.num_devices = 2;
  EXPECT_EQ(place_layer(sets, "round_robin", options).experts_of_device,
            (std::vector<std::vector<std::int32_t>>{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(place_layer(sets, "contiguous", options).experts_of_device,
            (std::vector<std::vector<std::int32_t>>{{0, 1, 2}, {3, 4}}));
}

TEST(Baselines, RandomDiffersBySeedAndLayer) {
  routing::ExpertSets sets;
  sets.num_experts = 64;
  PlacementOptions options;
  options.num_devices = 8;
  const auto first = place_layer(sets, "random", options, 0);
  EXPECT_NE(first, place_layer(sets, "random", options, 1));
  options.seed = 1;
  EXPECT_NE(first, place_layer(sets, "random", options, 0));
}

TEST(Baselines, LoadOnlyPacksEvenly) {
  // Loads 6,5,4,3,2,1 as one-expert sets: two devices of three get 6+3+2 and 5+4+1 or better.
  routing::ExpertSets sets;
  sets.num_experts = 6;
  for (std::uint16_t e = 0; e < 6; ++e) {
    sets.experts.push_back(e);
    sets.offsets.push_back(e + 1U);
    sets.tokens.push_back(6U - e);
  }
  PlacementOptions options;
  options.num_devices = 2;
  EXPECT_LE(measure_placement(place_layer(sets, "load_only", options), sets).load_imbalance,
            11 / 10.5);
  // A copy of the hottest expert on the other device.
  options.num_redundant_experts = 1;
  const auto devices = place_layer(sets, "load_only", options).devices_of_expert();
  EXPECT_EQ(devices[0].size(), 2U);
}

TEST(Baselines, RefusesImpossibleOptions) {
  routing::ExpertSets sets;
  sets.num_experts = 4;
  const auto message_of = [&](const PlacementOptions& options, std::string_view algorithm) {
    try {
      place_layer(sets, algorithm, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  PlacementOptions options;
  options.num_devices = 5;
  EXPECT_NE(message_of(options, "occult").find("5 devices are more than the 4 experts"),
            std::string::npos);
  options.num_devices = 4;
  EXPECT_NE(message_of(options, "best").find("no placement algorithm \"best\": contiguous"),
            std::string::npos);
  options.num_nodes = 3;
  EXPECT_NE(message_of(options, "occult").find("3 nodes"), std::string::npos);
  options.num_nodes = 1;
  options.num_redundant_experts = 13;
  EXPECT_NE(message_of(options, "occult").find("[0, 12]"), std::string::npos);
  options.num_redundant_experts = 0;
  options.load_cap = 0.9;
  EXPECT_NE(message_of(options, "occult").find("load cap 0.9"), std::string::npos);
}

}  // namespace
}  // namespace coterie::placement
