// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::cost {
namespace {

std::vector<Sample> line_samples(double alpha, double beta, int count, double noise = 0) {
  Random random(7);
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const double size = 1024.0 * std::pow(2.0, i);
    samples.push_back({size, (alpha + size * beta) * (1 + noise * (2 * random.uniform() - 1))});
  }
  return samples;
}

TEST(FitCostModel, FindsALine) {
  const auto samples = line_samples(2e-5, 3e-10, 16);
  const CostModel model = fit_cost_model(samples, "exchange");
  ASSERT_EQ(model.pieces().size(), 1U);
  EXPECT_NEAR(model.alpha_s(), 2e-5, 1e-12);
  EXPECT_NEAR(model.beta_s(), 3e-10, 1e-17);
  EXPECT_NEAR(model.quality().r_squared, 1, 1e-12);
  EXPECT_LT(model.quality().largest_relative_error, 1e-9);
  EXPECT_EQ(model.quality().num_points, 16);
  EXPECT_EQ(model.quality().smallest_size, 1024);
}

TEST(FitCostModel, SmallTransfersCountAsMuchAsLargeOnes) {
  // Ordinary least squares would let 3 % noise on the largest points swallow alpha.
  const auto samples = line_samples(2e-5, 3e-10, 20, 0.03);
  const CostModel model = fit_cost_model(samples, "exchange");
  EXPECT_NEAR(model.time_s(1024) / (2e-5 + 1024 * 3e-10), 1, 0.03);
  EXPECT_LT(model.quality().largest_relative_error, 0.05);
}

TEST(FitCostModel, BendsWhereOneLineDoesNotFit) {
  // A latency-bound start, an eager protocol, then bandwidth: slopes that rise.
  std::vector<Sample> samples;
  for (int i = 0; i < 24; ++i) {
    const double size = 256.0 * std::pow(2.0, i);
    samples.push_back({size, std::max({1e-5, 6e-6 + size * 4e-10, size * 5e-10})});
  }
  const CostModel model = fit_cost_model(samples, "exchange");
  EXPECT_GT(model.pieces().size(), 1U);
  EXPECT_LT(model.quality().largest_relative_error, 0.08);
  const CostModel line = fit_cost_model(samples, "exchange", {0.05, 1});
  EXPECT_GT(line.quality().largest_relative_error, 2 * model.quality().largest_relative_error);
  double before = 0;
  for (double size = 100; size < 1e10; size *= 1.1) {  // never falls, and size_in is its inverse
    const double time = model.time_s(size);
    EXPECT_GE(time, before);
    before = time;
    EXPECT_GE(model.size_in(time) * (1 + 1e-9), size);
    EXPECT_NEAR(model.time_s(model.size_in(time)), time, 1e-9 * time);
  }
}

TEST(FitCostModel, RandomPointsGiveAModelThatDoesNotFall) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Sample> samples;
    const auto count = 2 + random.below(20);
    for (std::uint64_t i = 0; i < count; ++i) {
      samples.push_back({1 + 1000 * static_cast<double>(i / 2 + 1) * random.uniform(),
                         1e-3 * (0.01 + random.uniform())});
    }
    const CostModel model = fit_cost_model(samples, "noise");  // its constructor checks the laws
    EXPECT_GE(model.time_s(1), 0);
    const CostModel line = fit_cost_model(samples, "noise", {0.05, 1});
    EXPECT_LE(line.pieces().size(), 1U);
  }
}

TEST(FitCostModel, RefusesWhatFixesNoLine) {
  const Sample one{1, 1};
  const Sample again{1, 2};
  EXPECT_THROW(fit_cost_model({}, "x"), Error);
  EXPECT_THROW(fit_cost_model(std::vector{one, again}, "x"), Error);
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(fit_cost_model(std::vector<Sample>{one, {bad, 1}}, "x"), Error);
    EXPECT_THROW(fit_cost_model(std::vector<Sample>{one, {2, bad}}, "x"), Error);
  }
}

TEST(CostModel, NothingTakesNoTime) {
  const CostModel model(1e-3, 1e-9);
  EXPECT_EQ(model.time_s(0), 0);
  EXPECT_EQ(CostModel().time_s(100), 0);
  EXPECT_EQ(model.size_in(0.5e-3), 0);
  EXPECT_NEAR(model.size_in(2e-3), 1e6, 1e-6);
  EXPECT_TRUE(std::isinf(CostModel(1e-3, 0).size_in(1e-3)));
}

TEST(CostModel, ScalesAndStaysContinuous) {
  const CostModel model({{0, 1e-5, 1e-10}, {1e6, 0.5e-4, 0.6e-10}}, {}, "x");
  const CostModel scaled = model.scaled(2, 3);
  EXPECT_NEAR(scaled.alpha_s(), 2e-5, 1e-15);
  EXPECT_NEAR(scaled.time_s(1e6), 2e-5 + 3e-4, 1e-12);
  EXPECT_NEAR(scaled.time_s(2e6), 2e-5 + 3e-4 + 1.8e-4, 1e-12);
}

TEST(CostModel, RefusesBrokenPieces) {
  EXPECT_THROW(CostModel(-1, 0), Error);
  EXPECT_THROW(CostModel(0, -1), Error);
  EXPECT_THROW(CostModel({}, {}, "x"), Error);
  EXPECT_THROW(CostModel({{1, 0, 1}}, {}, "x"), Error);
  EXPECT_THROW(CostModel({{0, 0, 1}, {0, 0, 1}}, {}, "x"), Error);
  EXPECT_THROW(CostModel({{0, 0, 1}, {10, 5, 1}}, {}, "x"), Error);  // jumps at 10
}

TEST(CheckPrediction, WarnsThenRefuses) {
  EXPECT_EQ(check_prediction(1.09, 1).verdict, Verdict::kGood);
  EXPECT_EQ(check_prediction(1.11, 1).verdict, Verdict::kWarn);
  EXPECT_EQ(check_prediction(0.89, 1).verdict, Verdict::kWarn);
  EXPECT_EQ(check_prediction(1.26, 1).verdict, Verdict::kRefuse);
  EXPECT_EQ(check_prediction(0.74, 1).verdict, Verdict::kRefuse);
  EXPECT_THROW(check_prediction(0, 1), Error);
  EXPECT_THROW(check_prediction(1, 0), Error);
}

}  // namespace
}  // namespace coterie::cost
