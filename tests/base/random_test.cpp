// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace coterie {
namespace {

TEST(Random, SeedAndStreamFixEveryNumber) {
  Random a(7, 3);
  Random b(7, 3);
  Random other_stream(7, 4);
  Random other_seed(8, 3);
  const std::uint64_t first = a.next();
  EXPECT_EQ(first, b.next());
  EXPECT_NE(first, other_stream.next());
  EXPECT_NE(first, other_seed.next());
}

TEST(Random, BelowIsInRangeAndEven) {
  Random random(1);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) {
    ++counts[random.below(7)];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10000, 500);
  }
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random(2);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

TEST(Random, ShuffleKeepsTheItems) {
  std::vector<int> items = {1, 2, 3, 4, 5};
  Random random(3);
  random.shuffle(std::span(items));
  std::vector<int> sorted = items;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int>{1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace coterie
