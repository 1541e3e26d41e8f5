// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

/// Calls `visit` with every way to deal experts to devices of the given sizes.
void each_placement(std::vector<std::int32_t>& room, std::vector<std::int32_t>& device_of,
                    std::size_t expert, const std::function<void()>& visit) {
  if (expert == device_of.size()) {
    visit();
    return;
  }
  for (std::size_t d = 0; d < room.size(); ++d) {
    if (room[d] > 0) {
      --room[d];
      device_of[expert] = static_cast<std::int32_t>(d);
      each_placement(room, device_of, expert + 1, visit);
      ++room[d];
    }
  }
}

/// C_T of the best placement and the mean over all placements.
struct Exhaustive {
  double best = 1e9;
  double mean = 0;
};

Exhaustive try_all(const ExpertSets& sets, std::vector<std::int32_t> sizes) {
  Exhaustive result;
  const auto num_devices = static_cast<std::int32_t>(sizes.size());
  std::vector<std::int32_t> device_of(static_cast<std::size_t>(sets.num_experts));
  double count = 0;
  each_placement(sizes, device_of, 0, [&] {
    const double replicas = count_replicas(sets, device_of, num_devices).replicas_per_token();
    result.best = std::min(result.best, replicas);
    result.mean += replicas;
    ++count;
  });
  result.mean /= count;
  return result;
}

TEST(Bounds, HoldAgainstExhaustiveSearch) {
  const std::vector<std::vector<std::int32_t>> sizes = {{4, 4}, {3, 3, 2}, {2, 2, 2, 2}, {5, 2, 1}};
  double tightest = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Random random(seed);
    const auto top_k = static_cast<std::int32_t>(1 + random.below(4));
    const auto num_tokens = static_cast<std::size_t>(1 + random.below(30));
    const auto ids = random_ids(random, num_tokens, top_k, 8, seed % 3 == 0 ? 4 : 0);
    const ExpertSets sets = make_expert_sets(ids, top_k, 8);
    if (sets.num_tokens() == 0) {
      continue;
    }
    for (const auto& device_sizes : sizes) {
      const ReplicaBounds bounds = replica_bounds(sets, device_sizes);
      const Exhaustive all = try_all(sets, device_sizes);
      EXPECT_LE(bounds.star, all.best + 1e-9) << "seed " << seed << ", k " << top_k;
      EXPECT_LE(bounds.trivial, all.best + 1e-9);
      EXPECT_GE(bounds.upper, all.best - 1e-9);
      EXPECT_NEAR(bounds.random, all.mean, 1e-9) << "seed " << seed;
      if (bounds.trivial < all.best) {
        tightest = std::max(tightest, bounds.star / all.best);
      }
    }
  }
  EXPECT_GT(tightest, 0.9) << "a bound that is never near the optimum says nothing";
}

// Occult, Eq. 5 and what follows from it, for the models of the paper.
TEST(Bounds, RandomExpectationOfKnownModels) {
  const auto random = [](std::int32_t experts, std::int32_t k, std::int32_t devices) {
    return random_replicas(k, even_device_sizes(experts, devices));
  };
  EXPECT_NEAR(random(64, 8, 2), 1.995, 5e-4);
  EXPECT_NEAR(random(64, 8, 4), 3.659, 5e-4);
  EXPECT_NEAR(random(64, 8, 8), 5.433, 5e-4);
  EXPECT_NEAR(random(64, 8, 16), 6.751, 5e-4);
  EXPECT_NEAR(random(60, 4, 4), 2.778, 5e-4);
  EXPECT_NEAR(random(64, 6, 16), 5.316, 5e-4);
  EXPECT_EQ(random(4, 4, 4), 4.0);
  EXPECT_EQ(random(4, 0, 2), 0.0);
}

TEST(Bounds, FewestDevices) {
  EXPECT_EQ(fewest_devices(8, even_device_sizes(64, 16)), 2);
  EXPECT_EQ(fewest_devices(8, even_device_sizes(64, 8)), 1);
  const std::vector<std::int32_t> uneven = {1, 5, 2};
  EXPECT_EQ(fewest_devices(5, uneven), 1);
  EXPECT_EQ(fewest_devices(6, uneven), 2);
  EXPECT_EQ(fewest_devices(8, uneven), 3);
  EXPECT_EQ(fewest_devices(0, uneven), 0);
  expect_refused([&] { fewest_devices(9, uneven); }, {"9 experts"});
}

TEST(Bounds, DeviceSizes) {
  EXPECT_EQ(even_device_sizes(10, 4), (std::vector<std::int32_t>{3, 3, 2, 2}));
  expect_refused([] { even_device_sizes(3, 4); }, {"3 experts", "4 devices"});
  expect_refused([] { even_device_sizes(3, 0); }, {"devices is 0"});
}

TEST(Bounds, StarSeesGroupsThatFitADevice) {
  // Every token stays in one of two groups of four: one device suffices, and the bound says 1.
  Random random(2);
  std::vector<std::uint16_t> ids;
  for (std::size_t t = 0; t < 100; ++t) {
    const auto group = random_ids(random, 1, 4, 4);
    for (const std::uint16_t id : group) {
      ids.push_back(static_cast<std::uint16_t>(id + 4 * (t % 2)));
    }
  }
  const ReplicaBounds bounds = replica_bounds(make_expert_sets(ids, 4, 8), even_device_sizes(8, 2));
  EXPECT_NEAR(bounds.star, 1.0, 1e-9);
  EXPECT_NEAR(bounds.trivial, 1.0, 1e-9);
}

TEST(Bounds, StarBeatsTrivialForScatteredTokens) {
  Random random(4);
  const auto ids = random_ids(random, 5000, 4, 32);
  const ReplicaBounds bounds =
      replica_bounds(make_expert_sets(ids, 4, 32), even_device_sizes(32, 4));
  EXPECT_GT(bounds.star, 1.5 * bounds.trivial);
  EXPECT_EQ(bounds.lower(), bounds.star);
}

TEST(Bounds, WithoutTokensAllAreZero) {
  EXPECT_EQ(replica_bounds(make_expert_sets({}, 2, 4), even_device_sizes(4, 2)), ReplicaBounds());
}

}  // namespace
}  // namespace coterie::routing
