// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/drift.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::cost {
namespace {

/// A run of `steps` steps with 4 chunks each; `slowness(step)` is the true factor over the first
/// model. Accepts every re-fit, as a trainer does.
struct Watched {
  std::vector<DriftDecision> refits;
  double model = 1;  ///< the factor that the models have been scaled by
};

Watched watch(std::int64_t steps, double noise, const std::function<double(std::int64_t)>& slowness,
              std::uint64_t seed = 1, const DriftOptions& options = {}) {
  Random random(seed);
  DriftDetector detector(2, options);
  Watched run;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      const double jitter = std::exp(noise * random.normal());
      detector.observe(0, 1e-3 * run.model, 1e-3 * slowness(step) * jitter);
      detector.observe(1, 2e-3, 2e-3 * std::exp(noise * random.normal()));
    }
    const DriftDecision decision = detector.end_step();
    EXPECT_EQ(decision.step, step);
    if (!decision.refits.empty()) {
      run.refits.push_back(decision);
      detector.accept(decision);
      for (const Refit& refit : decision.refits) {
        run.model *= refit.operation == 0 ? refit.factor : 1;
      }
    }
  }
  return run;
}

TEST(DriftDetector, StaysQuietUnderNoise) {
  for (const double noise : {0.0, 0.02, 0.1, 0.3}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      EXPECT_TRUE(watch(
                      2000, noise, [](auto) { return 1.0; }, seed)
                      .refits.empty())
          << noise << " " << seed;
    }
  }
}

TEST(DriftDetector, SeesALinkSlowedThreeTimesWithinFiftySteps) {
  for (const double noise : {0.0, 0.05, 0.2}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Watched run = watch(
          400, noise, [](auto s) { return s < 200 ? 1.0 : 3.0; }, seed);
      ASSERT_GE(run.refits.size(), 1U);
      EXPECT_GE(run.refits[0].step, 200);
      EXPECT_LT(run.refits[0].step, 250);
      ASSERT_EQ(run.refits[0].refits.size(), 1U);
      EXPECT_EQ(run.refits[0].refits[0].operation, 0);
      EXPECT_LE(run.refits.size(), 2U);  // at most one correction
      EXPECT_NEAR(run.model, 3, 0.3);
    }
  }
}

TEST(DriftDetector, SeesTheLinkComeBack) {
  const Watched run = watch(600, 0.05, [](auto s) { return s >= 200 && s < 400 ? 3.0 : 1.0; });
  ASSERT_GE(run.refits.size(), 2U);
  EXPECT_NEAR(run.model, 1, 0.1);
}

TEST(DriftDetector, SeesASmallLastingChangeAndIgnoresASmallerOne) {
  EXPECT_FALSE(watch(600, 0.02, [](auto s) { return s < 100 ? 1.0 : 1.2; }).refits.empty());
  EXPECT_TRUE(watch(600, 0.02, [](auto s) { return s < 100 ? 1.0 : 1.04; }).refits.empty());
}

TEST(DriftDetector, OneHiccupIsNoChange) {
  const auto hiccup = [](std::int64_t s) { return s % 97 == 50 ? 20.0 : 1.0; };
  EXPECT_TRUE(watch(2000, 0.02, hiccup).refits.empty());
}

TEST(DriftDetector, FollowsASlowDriftWithFewRefits) {
  const Watched run = watch(1000, 0.02, [](auto s) { return 1 + static_cast<double>(s) / 1000; });
  EXPECT_GE(run.refits.size(), 3U);
  EXPECT_LE(run.refits.size(), 12U);
  EXPECT_NEAR(run.model, 2, 0.25);
}

TEST(DriftDetector, RestsBetweenTwoRefits) {
  // The link flaps every ten steps: without the cool-down every flap would re-plan.
  const auto flap = [](std::int64_t s) { return (s / 10) % 2 == 0 ? 1.0 : 3.0; };
  const Watched run = watch(1000, 0.0, flap);
  for (std::size_t i = 1; i < run.refits.size(); ++i) {
    EXPECT_GE(run.refits[i].step - run.refits[i - 1].step, 20);
  }
  DriftOptions eager;
  eager.cool_down_steps = 0;
  EXPECT_GT(watch(1000, 0.0, flap, 1, eager).refits.size(), run.refits.size());
}

TEST(DriftDetector, OperationsWithoutObservationsAreLeftAlone) {
  DriftDetector detector(3);
  for (int step = 0; step < 100; ++step) {
    detector.observe(1, 1, step < 50 ? 1 : 2);
    const DriftDecision decision = detector.end_step();
    for (const Refit& refit : decision.refits) {
      EXPECT_EQ(refit.operation, 1);
    }
    detector.accept(decision);
  }
  EXPECT_EQ(detector.level(0), 1);
  EXPECT_EQ(detector.level(2), 1);
}

TEST(DriftDetector, RefusesWhatIsNoDuration) {
  DriftDetector detector(1);
  EXPECT_THROW(detector.observe(1, 1, 1), Error);
  EXPECT_THROW(detector.observe(0, 0, 1), Error);
  EXPECT_THROW(detector.observe(0, 1, std::nan("")), Error);
  EXPECT_THROW(DriftDetector(0), Error);
}

TEST(WorthReplanning, NeedsTwoPercent) {
  EXPECT_FALSE(worth_replanning(1, 0.985));
  EXPECT_TRUE(worth_replanning(1, 0.97));
}

}  // namespace
}  // namespace coterie::cost
