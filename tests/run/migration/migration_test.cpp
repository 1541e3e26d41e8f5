// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/migration/migration.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::migration {
namespace {

using placement::LayerPlacement;

/// Experts dealt at random, sizes as even as they can be, `num_copies` further copies.
LayerPlacement dealt(Random& random, std::int32_t num_experts, int num_devices, int num_copies) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  LayerPlacement made;
  made.num_experts = num_experts;
  made.experts_of_device.resize(static_cast<std::size_t>(num_devices));
  for (std::size_t i = 0; i < order.size(); ++i) {
    made.experts_of_device[i % static_cast<std::size_t>(num_devices)].push_back(order[i]);
  }
  for (int copy = 0; copy < num_copies; ++copy) {
    auto& device = made.experts_of_device[random.below(static_cast<std::uint64_t>(num_devices))];
    const auto expert =
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_experts)));
    if (std::ranges::find(device, expert) == device.end()) {
      device.push_back(expert);
    }
  }
  for (auto& device : made.experts_of_device) {
    std::ranges::sort(device);
  }
  return made;
}

/// What expert `expert` is made of.
std::vector<std::byte> bytes_of(std::int32_t expert, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((static_cast<std::size_t>(expert) * 37 + i * 11) & 0xFFU);
  }
  return bytes;
}

std::vector<std::byte> held_by(const std::vector<std::int32_t>& experts, std::size_t size) {
  std::vector<std::byte> all;
  for (const std::int32_t expert : experts) {
    const auto bytes = bytes_of(expert, size);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

void check(const LayerPlacement& from, const LayerPlacement& to, std::size_t size) {
  comm::run_ranks(from.num_devices(), [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto before = held_by(from.experts_of_device[rank], size);
    std::vector<std::byte> after(to.experts_of_device[rank].size() * size, std::byte{0xEE});
    world.reset_traffic();
    move_experts(from, to, {before, after, size}, world);
    EXPECT_EQ(after, held_by(to.experts_of_device[rank], size)) << "rank " << rank;
    EXPECT_EQ(static_cast<std::int64_t>(world.traffic().sent_for(comm::Purpose::kControl)),
              bytes_to_send(from, to, size, world.rank()));
  });
}

TEST(Migration, ExpertsArriveByTheirGlobalNumber) {
  Random random(11);
  for (const int num_devices : {1, 2, 3, 4}) {
    for (const std::int32_t num_experts : {4, 7, 16}) {
      for (const int num_copies : {0, 3}) {
        for (const std::size_t size : {std::size_t{1}, std::size_t{13}, std::size_t{64}}) {
          const auto from = dealt(random, num_experts, num_devices, num_copies);
          check(from, dealt(random, num_experts, num_devices, num_copies), size);
          check(from, from, size);
        }
      }
    }
  }
}

TEST(Migration, WhatDoesNotFitIsRefused) {
  comm::SingleCommunicator alone;
  const auto one = placement::contiguous_placement(3, 1);
  std::vector<std::byte> bytes(6);
  std::vector<std::byte> after(6);
  EXPECT_THROW(move_experts(one, placement::contiguous_placement(4, 1), {bytes, after, 2}, alone),
               Error);
  EXPECT_THROW(move_experts(one, one, {bytes, after, 3}, alone), Error);
  EXPECT_THROW(move_experts(placement::contiguous_placement(4, 2),
                            placement::contiguous_placement(4, 2), {bytes, after, 2}, alone),
               Error);
}

}  // namespace
}  // namespace coterie::migration
