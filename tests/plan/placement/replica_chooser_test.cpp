// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coterie/base/error.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

/// A placement with `num_extra` second copies at random places; sizes need not be even.
LayerPlacement with_copies(Random& random, std::int32_t num_experts, std::int32_t num_devices,
                           std::int32_t num_extra) {
  LayerPlacement placement = testing::random_placement(random, num_experts, num_devices);
  while (num_extra > 0) {
    const auto expert = static_cast<std::int32_t>(random.below(num_experts));
    auto& held = placement.experts_of_device[random.below(num_devices)];
    if (!std::ranges::binary_search(held, expert)) {
      held.insert(std::ranges::lower_bound(held, expert), expert);
      --num_extra;
    }
  }
  return placement;
}

/// Fewest devices that hold all ids, by trying all sets of devices.
int fewest_devices(const LayerPlacement& placement, const std::vector<std::int32_t>& ids) {
  int fewest = placement.num_devices();
  for (unsigned mask = 0; mask < (1U << placement.num_devices()); ++mask) {
    const bool covers = std::ranges::all_of(ids, [&](std::int32_t id) {
      for (std::int32_t d = 0; d < placement.num_devices(); ++d) {
        if ((mask >> d & 1U) != 0 &&
            std::ranges::binary_search(placement.experts_of_device[static_cast<std::size_t>(d)],
                                       id)) {
          return true;
        }
      }
      return false;
    });
    if (covers) {
      fewest = std::min(fewest, std::popcount(mask));
    }
  }
  return fewest;
}

std::vector<std::int32_t> random_ids(Random& random, std::int32_t num_experts, std::size_t count) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::int32_t>(i);
  }
  random.shuffle(std::span(all));
  all.resize(count);
  return all;
}

TEST(ReplicaChooser, UsesTheFewestDevicesAndOnlyHolders) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const auto num_experts = static_cast<std::int32_t>(4 + random.below(12));
    const auto num_devices = static_cast<std::int32_t>(2 + random.below(3));
    const auto placement = with_copies(random, num_experts, num_devices,
                                       static_cast<std::int32_t>(random.below(num_experts)));
    const ReplicaChooser chooser(placement);
    const auto ids = random_ids(random, num_experts, 1 + random.below(4));
    std::vector<std::int32_t> devices(ids.size());
    chooser.choose(ids, devices);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto& held = placement.experts_of_device[static_cast<std::size_t>(devices[i])];
      EXPECT_TRUE(std::ranges::binary_search(held, ids[i]));
    }
    const std::set<std::int32_t> used(devices.begin(), devices.end());
    EXPECT_EQ(static_cast<int>(used.size()), fewest_devices(placement, ids)) << "round " << round;
  }
}

TEST(ReplicaChooser, IgnoresOrderAndEmptyPlaces) {
  Random random(2);
  const auto placement = with_copies(random, 16, 4, 12);
  const ReplicaChooser chooser(placement);
  for (int round = 0; round < 100; ++round) {
    auto ids = random_ids(random, 16, 6);
    std::vector<std::int32_t> devices(6);
    chooser.choose(ids, devices);
    std::vector<std::int32_t> turned = {-1, ids[5], ids[4], ids[3], -1, ids[2], ids[1], ids[0]};
    std::vector<std::int32_t> turned_devices(8);
    chooser.choose(turned, turned_devices);
    const std::vector<std::int32_t> expected = {-1, devices[5], devices[4], devices[3],
                                                -1, devices[2], devices[1], devices[0]};
    EXPECT_EQ(turned_devices, expected);
  }
}

TEST(ReplicaChooser, SpreadsFreeChoicesAndFollowsPrices) {
  // Expert 0 is on both devices; a token of expert 0 alone may go to either, and so may those of
  // experts {0, e} never (they follow e). 64 more experts give 64 different sets with two copies.
  LayerPlacement placement;
  placement.num_experts = 40;
  placement.experts_of_device.resize(2);
  for (std::int32_t e = 0; e < 40; ++e) {
    placement.experts_of_device[0].push_back(e);
    placement.experts_of_device[1].push_back(e);
  }
  const auto served_by_first = [&] {
    const ReplicaChooser chooser(placement);
    int first = 0;
    for (std::int32_t a = 0; a < 40; ++a) {
      for (std::int32_t b = a + 1; b < 40; ++b) {
        const std::int32_t ids[] = {a, b};
        std::int32_t devices[2];
        chooser.choose(ids, devices);
        EXPECT_EQ(devices[0], devices[1]);
        first += devices[0] == 0 ? 1 : 0;
      }
    }
    return first / 780.0;
  };
  EXPECT_NEAR(served_by_first(), 0.5, 0.06);
  placement.device_prices = {ReplicaChooser::kNoise / 2, 0};
  EXPECT_NEAR(served_by_first(), 0.125, 0.06);
  placement.device_prices = {0, ReplicaChooser::kNoise};
  EXPECT_EQ(served_by_first(), 1);
}

TEST(ReplicaChooser, RefusesBrokenCalls) {
  const ReplicaChooser chooser(contiguous_placement(4, 2));
  std::int32_t devices[2];
  const std::int32_t outside[] = {0, 4};
  EXPECT_THROW(chooser.choose(outside, devices), Error);
  const std::int32_t one[] = {0};
  EXPECT_THROW(chooser.choose(one, devices), Error);
}

}  // namespace
}  // namespace coterie::placement
