// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "coterie/base/json.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

/// Straight from the definition: no sets, no counters.
ReplicaStats brute_force(std::span<const std::uint16_t> ids, std::size_t top_k,
                         std::span<const std::int32_t> device_of_expert, std::int32_t num_devices) {
  ReplicaStats stats;
  stats.picks_of_device.resize(static_cast<std::size_t>(num_devices));
  stats.replicas_of_device.resize(static_cast<std::size_t>(num_devices));
  for (std::size_t row = 0; row < ids.size(); row += top_k) {
    std::set<std::int32_t> devices;
    for (const std::uint16_t id : ids.subspan(row, top_k)) {
      if (id != kNoExpert) {
        devices.insert(device_of_expert[id]);
        ++stats.num_picks;
        ++stats.picks_of_device[static_cast<std::size_t>(device_of_expert[id])];
      }
    }
    stats.num_tokens += devices.empty() ? 0 : 1;
    stats.num_replicas += devices.size();
    for (const std::int32_t device : devices) {
      ++stats.replicas_of_device[static_cast<std::size_t>(device)];
    }
  }
  return stats;
}

TEST(Replicas, CountsEqualBruteForce) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const auto num_experts = static_cast<std::int32_t>(1 + random.below(40));
    const auto top_k = static_cast<std::int32_t>(
        1 + random.below(static_cast<std::uint64_t>(std::min(num_experts, 9))));
    const auto num_devices = static_cast<std::int32_t>(1 + random.below(6));
    const auto ids = random_ids(random, random.below(200), top_k, num_experts, random.below(5));
    std::vector<std::int32_t> device_of(static_cast<std::size_t>(num_experts));
    for (std::int32_t& device : device_of) {
      device = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_devices)));
    }
    const ExpertSets sets = make_expert_sets(ids, top_k, num_experts);
    const ReplicaStats expected =
        brute_force(ids, static_cast<std::size_t>(top_k), device_of, num_devices);
    EXPECT_EQ(count_replicas(sets, device_of, num_devices), expected);
    const DeviceChooser chooser = [&](auto experts, auto devices) {
      for (std::size_t i = 0; i < experts.size(); ++i) {
        devices[i] = device_of[experts[i]];
      }
    };
    EXPECT_EQ(count_replicas(sets, num_devices, chooser), expected);
  }
}

// Occult, Fig. 2: four tokens of two experts on two devices; C_T is 1.5 without pruning.
TEST(Replicas, WorkedExampleOfThePaper) {
  const std::vector<std::uint16_t> ids = {0, 2, 0, 1, 2, 3, 1, 3};
  const std::vector<std::int32_t> device_of = {0, 0, 1, 1};
  const ReplicaStats stats = count_replicas(make_expert_sets(ids, 2, 4), device_of, 2);
  EXPECT_EQ(stats.replicas_per_token(), 1.5);
  EXPECT_EQ(stats.load_imbalance(), 1.0);
  EXPECT_EQ(stats.receive_imbalance(), 1.0);
  EXPECT_EQ(stats.bottleneck_replicas(), 1.5);
}

// Loads 2 and 6, hand-made (max / mean goes over devices).
TEST(Replicas, ImbalanceIsOverDevices) {
  const std::vector<std::uint16_t> ids = {0, 2, 2, 3, 2, 3, 0, 3};
  const std::vector<std::int32_t> device_of = {0, 0, 1, 1};
  const ReplicaStats stats = count_replicas(make_expert_sets(ids, 2, 4), device_of, 2);
  EXPECT_EQ(stats.picks_of_device, (std::vector<std::uint64_t>{2, 6}));
  EXPECT_EQ(stats.replicas_of_device, (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(stats.load_imbalance(), 1.5);
  EXPECT_DOUBLE_EQ(stats.receive_imbalance(), 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(stats.bottleneck_replicas(), 1.5 * 4.0 / 3.0);
}

TEST(Replicas, NoTokensGiveZeros) {
  const std::vector<std::int32_t> device_of = {0, 1};
  const ReplicaStats stats = count_replicas(make_expert_sets({}, 1, 2), device_of, 2);
  EXPECT_EQ(stats.replicas_per_token(), 0.0);
  EXPECT_EQ(stats.load_imbalance(), 0.0);
  EXPECT_EQ(stats.bottleneck_replicas(), 0.0);
}

TEST(Replicas, SumsOfPartsEqualTheWhole) {
  Random random(5);
  const auto ids = random_ids(random, 120, 3, 8);
  const std::vector<std::int32_t> device_of = {0, 1, 2, 0, 1, 2, 0, 1};
  const auto half = std::span(ids).first(180);
  ReplicaStats sum;
  sum += count_replicas(make_expert_sets(half, 3, 8), device_of, 3);
  sum += count_replicas(make_expert_sets(std::span(ids).subspan(180), 3, 8), device_of, 3);
  EXPECT_EQ(sum, count_replicas(make_expert_sets(ids, 3, 8), device_of, 3));
}

TEST(Replicas, BadPlacementsAreRefused) {
  const std::vector<std::uint16_t> ids = {0, 1};
  const ExpertSets sets = make_expert_sets(ids, 2, 2);
  const std::vector<std::int32_t> outside = {0, 2};
  expect_refused([&] { count_replicas(sets, outside, 2); }, {"expert 1", "device 2", "[0, 2)"});
  const std::vector<std::int32_t> few = {0};
  expect_refused([&] { count_replicas(sets, few, 2); }, {"1 experts", "sets of 2"});
}

TEST(Replicas, JsonHoldsCountsAndRatios) {
  const std::vector<std::uint16_t> ids = {0, 1};
  const std::vector<std::int32_t> device_of = {0, 1};
  const Json json = to_json(count_replicas(make_expert_sets(ids, 2, 2), device_of, 2));
  EXPECT_EQ(json["num_replicas"], 2);
  EXPECT_EQ(json["replicas_per_token"], 2.0);
  EXPECT_EQ(json["picks_of_device"], Json::array({1, 1}));
}

}  // namespace
}  // namespace coterie::routing
