// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/fit_budget.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "tests/plan/pruning/random_tokens.hpp"

namespace coterie::pruning {
namespace {

using testing::random_placement;
using testing::random_token;
using testing::Token;

class ThresholdFitTest : public ::testing::TestWithParam<int> {};

TEST_P(ThresholdFitTest, SpendsTheBudgetAndNoMore) {
  Random random(11);
  const auto placement = random_placement(random, 32, 8, GetParam());
  const Budget bounds{4, 1, 0};
  const DeviceLimit limit(placement, DeviceChoice::kKeptMass, bounds);
  ThresholdFit fit;
  std::vector<Token> tokens;
  for (int i = 0; i < 500; ++i) {
    tokens.push_back(random_token(random, 32, 6));
    fit.add(limit, tokens.back().picks());
  }
  for (const double mean : {1.0, 1.5, 2.0, 3.0, 4.0}) {
    const FittedThreshold fitted = fit.fit(mean);
    const DeviceLimit with(placement, DeviceChoice::kKeptMass, {4, 1, fitted.min_share});
    std::size_t devices = 0;
    for (const Token& token : tokens) {
      devices += with.choose(token.picks()).size();
    }
    EXPECT_DOUBLE_EQ(static_cast<double>(devices) / 500, fitted.mean_devices) << mean;
    EXPECT_LE(fitted.mean_devices, mean + 1e-12);
    EXPECT_GT(fitted.mean_devices, std::min(mean, 3.5) - 0.01) << mean;
  }
  EXPECT_THROW((void)fit.fit(0.5), Error);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutCopies, ThresholdFitTest, ::testing::Values(0, 20));

TEST(ThresholdFit, KeepsMoreThanAUniformBudgetOfTheSameMean) {
  Random random(5);
  const auto placement = random_placement(random, 64, 8);
  const DeviceLimit bounds(placement, DeviceChoice::kKeptMass, {4, 1, 0});
  const DeviceLimit uniform(placement, DeviceChoice::kKeptMass, {2});
  ThresholdFit fit;
  std::vector<Token> tokens;
  double uniform_devices = 0;
  for (int i = 0; i < 400; ++i) {
    tokens.push_back(random_token(random, 64, 8));
    fit.add(bounds, tokens.back().picks());
    uniform_devices += static_cast<double>(uniform.choose(tokens.back().picks()).size());
  }
  const DeviceLimit fitted(placement, DeviceChoice::kKeptMass,
                           {4, 1, fit.fit(uniform_devices / 400).min_share});
  double kept_uniform = 0;
  double kept_fitted = 0;
  for (const Token& token : tokens) {
    kept_uniform += uniform.kept_mass(token.picks(), uniform.choose(token.picks()));
    kept_fitted += fitted.kept_mass(token.picks(), fitted.choose(token.picks()));
  }
  EXPECT_GT(kept_fitted, kept_uniform);
}

TEST(ThresholdFit, RefusesNothing) {
  EXPECT_THROW((void)ThresholdFit().fit(2), Error);
  const auto placement = placement::contiguous_placement(4, 2);
  ThresholdFit fit;
  EXPECT_THROW(fit.add(DeviceLimit(placement, DeviceChoice::kKeptMass, {}), {}), Error);
}

}  // namespace
}  // namespace coterie::pruning
