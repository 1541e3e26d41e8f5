// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/data_order.hpp"

#include <gtest/gtest.h>

#include <set>

#include "coterie/base/error.hpp"

namespace coterie::training {
namespace {

DataOrder::Options options_of(OrderKind kind) {
  return {kind, 10, 7, {101, 5, 45}, {1, 0, 3}};
}

TEST(DataOrderTest, AnEpochHasEveryWindowOnceAndEpochsDiffer) {
  DataOrder order(options_of(OrderKind::kShuffled));
  ASSERT_EQ(order.epoch_size(), 10 + 0 + 4);
  std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> epochs(2);
  for (std::int64_t i = 0; i < 28; ++i) {
    const Window window = order.window(i);
    EXPECT_EQ(window.begin % 10, 0);
    epochs[static_cast<std::size_t>(i / 14)].emplace_back(window.source, window.begin);
  }
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), 14U);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(DataOrderTest, ASequenceDependsOnItsNumberAlone) {
  for (const OrderKind kind : {OrderKind::kShuffled, OrderKind::kMixture}) {
    DataOrder forward(options_of(kind));
    std::vector<Window> windows;
    for (std::int64_t i = 0; i < 40; ++i) {
      windows.push_back(forward.window(i));
    }
    DataOrder backward(options_of(kind));
    for (std::int64_t i = 39; i >= 0; --i) {
      EXPECT_EQ(backward.window(i), windows[static_cast<std::size_t>(i)]);
    }
    DataOrder::Options other = options_of(kind);
    other.seed = 8;
    DataOrder reseeded(other);
    int same = 0;
    for (std::int64_t i = 0; i < 40; ++i) {
      same += reseeded.window(i) == windows[static_cast<std::size_t>(i)] ? 1 : 0;
    }
    EXPECT_LT(same, 30);
  }
}

TEST(DataOrderTest, MixtureFollowsTheSharesAndStaysInside) {
  DataOrder order(options_of(OrderKind::kMixture));
  int of_last = 0;
  std::set<std::int64_t> begins;
  for (std::int64_t i = 0; i < 4000; ++i) {
    const Window window = order.window(i);
    ASSERT_NE(window.source, 1U);
    ASSERT_GE(window.begin, 0);
    ASSERT_LE(window.begin + 11, window.source == 0 ? 101 : 45);
    of_last += window.source == 2 ? 1 : 0;
    if (window.source == 2) {
      begins.insert(window.begin);
    }
  }
  EXPECT_NEAR(of_last, 3000, 120);
  EXPECT_EQ(begins.size(), 35U);
}

TEST(DataOrderTest, TooLittleDataIsRefused) {
  EXPECT_THROW(DataOrder({OrderKind::kShuffled, 10, 0, {10, 3}, {}}), Error);
  EXPECT_NO_THROW(DataOrder({OrderKind::kShuffled, 10, 0, {11}, {}}));
  EXPECT_THROW(DataOrder({OrderKind::kMixture, 10, 0, {10}, {1}}), Error);
}

}  // namespace
}  // namespace coterie::training
