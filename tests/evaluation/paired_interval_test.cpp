// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/paired_interval.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::evaluation {
namespace {

TEST(PairedInterval, EqualSystemsDifferByNothing) {
  const std::vector<double> values = {1, 0, 1, 1, 0.5};
  EXPECT_EQ(paired_difference(values, values), (Interval{0, 0, 0}));
}

TEST(PairedInterval, IsAsWideAsTheNormalOne) {
  Random random(4);
  std::vector<double> a(900);
  std::vector<double> b(900);
  double variance = 0;
  double mean = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = random.normal() * 10;  // items differ a lot, systems little: pairing takes that out
    b[i] = a[i] + 0.2 + random.normal();
    mean += (b[i] - a[i]) / 900;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    variance += std::pow(b[i] - a[i] - mean, 2) / 899;
  }
  const Interval interval = paired_difference(a, b, 1, 4000);
  EXPECT_NEAR(interval.mean, mean, 1e-12);
  const double half = 1.96 * std::sqrt(variance / 900);
  EXPECT_NEAR(interval.low, mean - half, 0.1 * half);
  EXPECT_NEAR(interval.high, mean + half, 0.1 * half);
  EXPECT_EQ(interval, paired_difference(a, b, 1, 4000));
}

TEST(PairedInterval, RatiosWeighItems) {
  const std::vector<double> a = {10, 1};
  const std::vector<double> b = {20, 1};
  const std::vector<double> bytes = {8, 2};
  EXPECT_DOUBLE_EQ(paired_ratio_difference(a, b, bytes).mean, 1.0);
  EXPECT_DOUBLE_EQ(paired_ratio_difference(a, b, bytes).low, 0.0);
  EXPECT_DOUBLE_EQ(paired_ratio_difference(a, b, bytes).high, 10.0 / 8);
}

TEST(PairedInterval, RefusesListsThatDoNotPair) {
  const std::vector<double> two = {1, 2};
  const std::vector<double> three = {1, 2, 3};
  EXPECT_THROW((void)paired_difference(two, three), Error);
  EXPECT_THROW((void)paired_difference({}, {}), Error);
  EXPECT_THROW((void)paired_difference(two, two, 0, 10), Error);
}

}  // namespace
}  // namespace coterie::evaluation
