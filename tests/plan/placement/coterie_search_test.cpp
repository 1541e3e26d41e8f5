// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coterie/base/error.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

PlacementOptions options_for(std::int32_t num_devices, std::optional<double> load_cap) {
  PlacementOptions options;
  options.num_devices = num_devices;
  options.load_cap = load_cap;
  options.num_threads = 2;
  return options;
}

std::string infeasible_message(const routing::ExpertSets& sets, const PlacementOptions& options,
                               std::int32_t layer = 0) {
  try {
    place_layer(sets, "coterie", options, layer);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInfeasible) << error.what();
    return error.what();
  }
  return "placed";
}

void expect_even_sizes(const LayerPlacement& placement) {
  const auto [fewest, most] = std::ranges::minmax(placement.experts_of_device, {},
                                                  [](const auto& held) { return held.size(); });
  EXPECT_LE(most.size() - fewest.size(), 1U);
}

/// Least rows over all ways to put 8 experts on devices of equal size.
std::uint64_t enumerated_optimum(const routing::ExpertSets& sets, std::int32_t num_devices) {
  std::vector<std::int32_t> device_of(8);
  for (std::size_t e = 0; e < 8; ++e) {
    device_of[e] = static_cast<std::int32_t>(e) * num_devices / 8;
  }
  std::uint64_t least = testing::count_rows(sets, device_of);
  while (std::ranges::next_permutation(device_of).found) {
    least = std::min(least, testing::count_rows(sets, device_of));
  }
  return least;
}

TEST(Coterie, EqualsTheEnumeratedOptimumOfLlamaMoe) {
  if (testing::real_data_folder().empty()) {
    GTEST_SKIP() << "no real routing data beside the repository";
  }
  const auto layers = testing::read_llama_moe();
  ASSERT_EQ(layers.size(), 32U);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (const std::int32_t num_devices : {2, 4}) {
      const auto placement =
          place_layer(layers[layer], "coterie", options_for(num_devices, std::nullopt),
                      static_cast<std::int32_t>(layer));
      EXPECT_EQ(testing::count_rows(layers[layer], placement.device_of_expert()),
                enumerated_optimum(layers[layer], num_devices))
          << "layer " << layer << ", " << num_devices << " devices";
    }
  }
}

TEST(Coterie, SaysWhichExpertMakesTheCapImpossible) {
  if (testing::real_data_folder().empty()) {
    GTEST_SKIP() << "no real routing data beside the repository";
  }
  const auto fit = testing::read_olmoe_halves(0).first;
  const std::string message = infeasible_message(fit, options_for(16, 1.10), 0);
  for (const char* part : {"layer 0", "expert 41", "1.33", "--num-redundant-experts 1"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Coterie, IsTheSameOnAnyNumberOfThreads) {
  Random random(31);
  const auto sets = testing::random_sets(random, 32, 4, 3000);
  for (const Objective objective : {Objective::kMean, Objective::kBottleneck}) {
    PlacementOptions options = options_for(4, 1.2);
    options.objective = objective;
    options.sample_sets = 500;
    options.num_threads = 1;
    const auto one = place_layer(sets, "coterie", options);
    for (const std::int32_t threads : {2, 3, 8}) {
      options.num_threads = threads;
      EXPECT_EQ(place_layer(sets, "coterie", options), one) << threads << " threads";
    }
  }
}

TEST(Coterie, KeepsTheCapOrSaysThatItCannot) {
  Random random(32);
  for (int round = 0; round < 10; ++round) {
    const auto sets = testing::random_sets(random, 16, 2, 500);
    const PlacementOptions options = options_for(4, 1.05);
    try {
      const auto placement = place_layer(sets, "coterie", options);
      EXPECT_LE(measure_placement(placement, sets).load_imbalance, 1.05 + 1e-12);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInfeasible);
    }
  }
}

TEST(Coterie, UnequalSizes) {
  Random random(33);
  const auto sets = testing::random_sets(random, 10, 3, 400);
  const auto placement = place_layer(sets, "coterie", options_for(4, std::nullopt));
  expect_even_sizes(placement);
  EXPECT_LE(measure_placement(placement, sets).replicas,
            measure_placement(contiguous_placement(10, 4), sets).replicas);
}

TEST(Coterie, NodesFirstLowersNodesATokenReaches) {
  Random random(34);
  const auto sets = testing::random_sets(random, 32, 6, 3000);
  PlacementOptions options = options_for(8, 1.2);
  const auto flat = place_layer(sets, "coterie", options);
  options.num_nodes = 2;
  const auto nested = place_layer(sets, "coterie", options);
  expect_even_sizes(nested);
  EXPECT_LE(measure_placement(nested, sets).load_imbalance, 1.2 + 1e-12);
  const auto nodes_of = [&](const LayerPlacement& placement) {
    auto node_of = placement.device_of_expert();
    for (std::int32_t& device : node_of) {
      device /= 4;
    }
    return testing::count_rows(sets, node_of);
  };
  EXPECT_LT(nodes_of(nested), nodes_of(flat));
}

// Edge inputs of partitioners (pitfalls, F17).
TEST(Coterie, NoTokensAtAll) {
  routing::ExpertSets sets;
  sets.num_experts = 10;
  expect_even_sizes(place_layer(sets, "coterie", options_for(4, 1.10)));
}

TEST(Coterie, SetsOfOneExpertAndRepeatedSets) {
  std::vector<std::uint16_t> ids(64, 3);
  ids.resize(128, 5);
  const auto sets = routing::make_expert_sets(ids, 1, 8);
  EXPECT_EQ(sets.num_sets(), 2U);
  const auto placement = place_layer(sets, "coterie", options_for(2, 1.10));
  expect_even_sizes(placement);
  EXPECT_EQ(measure_placement(placement, sets).load_imbalance, 1);
}

TEST(Coterie, OneHeavyExpert) {
  std::vector<std::uint16_t> ids;
  for (std::uint16_t t = 0; t < 70; ++t) {
    ids.insert(ids.end(), {0, static_cast<std::uint16_t>(1 + t % 7)});
  }
  const auto sets = routing::make_expert_sets(ids, 2, 8);
  expect_even_sizes(place_layer(sets, "coterie", options_for(4, std::nullopt)));
  const std::string message = infeasible_message(sets, options_for(4, 1.10), 7);
  EXPECT_NE(message.find("layer 7"), std::string::npos) << message;
  EXPECT_NE(message.find("expert 0"), std::string::npos) << message;
}

TEST(Coterie, OneDeviceAndOneExpertADevice) {
  Random random(35);
  const auto sets = testing::random_sets(random, 6, 2, 50);
  EXPECT_EQ(place_layer(sets, "coterie", options_for(1, 1.10)), contiguous_placement(6, 1));
  expect_even_sizes(place_layer(sets, "coterie", options_for(6, std::nullopt)));
}

}  // namespace
}  // namespace coterie::placement
