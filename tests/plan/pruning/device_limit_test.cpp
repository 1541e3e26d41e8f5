// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/device_limit.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "coterie/base/error.hpp"
#include "tests/plan/pruning/random_tokens.hpp"

namespace coterie::pruning {
namespace {

using testing::random_placement;
using testing::random_token;
using testing::Token;
using Devices = std::vector<std::int32_t>;

/// Device 0: experts 0 1, device 1: 2 3, device 2: 4 5, device 3: 6 7.
const placement::LayerPlacement kPairs = placement::contiguous_placement(8, 4);

TEST(DeviceLimit, WorkedExample) {
  const std::vector<std::int32_t> ids = {2, 4, 0, 5};
  const std::vector<float> scores = {0.40F, 0.25F, 0.20F, 0.14F};
  const Picks picks = {ids, scores};
  // Descending score meets devices 1, 2, 0; the mass is 0.20, 0.40, 0.39.
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kFirstSeen, {1}).choose(picks), (Devices{1}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kFirstSeen, {2}).choose(picks), (Devices{1, 2}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {1}).choose(picks), (Devices{1}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {2}).choose(picks), (Devices{1, 2}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {3}).choose(picks), (Devices{0, 1, 2}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {0}).choose(picks), (Devices{0, 1, 2}));
  // Device 0 holds 0.20 of 0.99.
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {3, 1, 0.21}).choose(picks),
            (Devices{1, 2}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {3, 3, 0.21}).choose(picks),
            (Devices{0, 1, 2}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {3, 1, 0.9}).choose(picks), (Devices{1}));
}

TEST(DeviceLimit, MassCanDifferFromFirstSeen) {
  const std::vector<std::int32_t> ids = {0, 2, 3, 1};
  const std::vector<float> scores = {0.30F, 0.28F, 0.27F, 0.01F};
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kFirstSeen, {1}).choose({ids, scores}), (Devices{0}));
  EXPECT_EQ(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {1}).choose({ids, scores}), (Devices{1}));
}

TEST(DeviceLimit, TokensWithoutExpertsHaveNoDevices) {
  const std::vector<std::int32_t> ids = {-1, -1};
  const std::vector<float> scores = {0, 0};
  for (const DeviceChoice choice : {DeviceChoice::kFirstSeen, DeviceChoice::kKeptMass}) {
    EXPECT_TRUE(DeviceLimit(kPairs, choice, {2}).choose({ids, scores}).empty());
    EXPECT_TRUE(DeviceLimit(kPairs, choice, {2}).choose({}).empty());
  }
}

/// All subsets, as bits: the largest mass among those of at most `limit` devices.
double largest_mass(const DeviceLimit& limit, const Picks& picks, std::int32_t num_devices) {
  double best = 0;
  for (std::uint32_t bits = 0; bits < 1U << static_cast<unsigned>(num_devices); ++bits) {
    Devices devices;
    for (std::int32_t d = 0; d < num_devices; ++d) {
      if ((bits >> static_cast<unsigned>(d) & 1U) != 0) {
        devices.push_back(d);
      }
    }
    if (std::popcount(bits) <= limit.budget().max_devices) {
      best = std::max(best, limit.kept_mass(picks, devices));
    }
  }
  return best;
}

TEST(DeviceLimit, KeptMassIsTheLargestAndNeverBelowFirstSeen) {
  Random random(7);
  bool differs = false;
  for (int round = 0; round < 600; ++round) {
    const auto num_devices = static_cast<std::int32_t>(1 + random.below(8));
    const auto num_experts =
        static_cast<std::int32_t>(num_devices + static_cast<std::int32_t>(random.below(24)));
    const auto top_k = static_cast<std::int32_t>(
        1 + random.below(static_cast<std::uint64_t>(std::min(num_experts, 10))));
    const auto placement =
        random_placement(random, num_experts, num_devices, round % 2 == 0 ? 0 : num_experts / 2);
    const Token token = random_token(random, num_experts, top_k, round % 3 == 0 ? 3 : 0);
    const Budget budget{
        static_cast<std::int32_t>(1 + random.below(static_cast<std::uint64_t>(num_devices)))};
    const DeviceLimit mass(placement, DeviceChoice::kKeptMass, budget);
    const DeviceLimit first(placement, DeviceChoice::kFirstSeen, budget);
    const Devices kept = mass.choose(token.picks());
    const Devices seen = first.choose(token.picks());
    ASSERT_LE(std::ssize(kept), budget.max_devices);
    ASSERT_LE(std::ssize(seen), budget.max_devices);
    ASSERT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    const double kept_mass = mass.kept_mass(token.picks(), kept);
    ASSERT_GE(kept_mass, first.kept_mass(token.picks(), seen));
    ASSERT_EQ(kept_mass, largest_mass(mass, token.picks(), num_devices)) << "round " << round;
    differs |= kept != seen;
  }
  EXPECT_TRUE(differs);
}

TEST(DeviceLimit, ManySetsFallBackToOneByOne) {
  Random random(3);
  const auto placement = random_placement(random, 256, 64, 128);
  const DeviceLimit mass(placement, DeviceChoice::kKeptMass, {6});
  for (int round = 0; round < 20; ++round) {
    const Token token = random_token(random, 256, 16);
    const Devices devices = mass.choose(token.picks());
    EXPECT_EQ(devices.size(), 6U);
    EXPECT_GE(
        mass.kept_mass(token.picks(), devices),
        mass.kept_mass(token.picks(),
                       DeviceLimit(placement, DeviceChoice::kKeptMass, {5}).choose(token.picks())));
  }
}

TEST(DeviceLimit, RefusesBudgetsThatMakeNoSense) {
  EXPECT_THROW(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {2, 3}), Error);
  EXPECT_THROW(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {2, 0}), Error);
  EXPECT_THROW(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {2, 1, 1.5}), Error);
  EXPECT_THROW(DeviceLimit(kPairs, DeviceChoice::kFirstSeen, {2, 1, 0.5}), Error);
  EXPECT_THROW(DeviceLimit(kPairs, DeviceChoice::kKeptMass, {-1}), Error);
}

}  // namespace
}  // namespace coterie::pruning
