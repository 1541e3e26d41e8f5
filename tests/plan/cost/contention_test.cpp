// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/contention.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::cost {
namespace {

TEST(Contention, IsFreeUnlessSaid) {
  EXPECT_TRUE(Contention().is_free());
  EXPECT_TRUE(uniform_contention(0).is_free());
  const Contention links = uniform_contention(0.3);
  EXPECT_FALSE(links.is_free());
  EXPECT_EQ(links.factor(Resource::kInterNode, Resource::kIntraNode), 1.3);
  EXPECT_EQ(links.factor(Resource::kCompute, Resource::kIntraNode), 1);
  EXPECT_EQ(links.factor(Resource::kInterNode, Resource::kInterNode), 2);
  EXPECT_THROW(uniform_contention(-0.1), Error);
}

TEST(SlowDownOf, FindsTheFactorsOfAMadeRun) {
  Random random(1);
  for (int round = 0; round < 1000; ++round) {
    const double a = 0.1 + random.uniform();
    const double b = 0.1 + random.uniform();
    const double slow_a = 1 + random.uniform();
    const double slow_b = 1 + random.uniform();
    // The shorter one runs beside the other all the time; then the other finishes alone.
    PairMeasurement run{a, b, a * slow_a, b * slow_b};
    if (run.end_a_s <= run.end_b_s) {
      run.end_b_s = run.end_a_s + (b - run.end_a_s / slow_b);
    } else {
      run.end_a_s = run.end_b_s + (a - run.end_b_s / slow_a);
    }
    const PairSlowDown found = slow_down_of(run);
    EXPECT_NEAR(found.a, slow_a, 1e-9);
    EXPECT_NEAR(found.b, slow_b, 1e-9);
  }
}

TEST(SlowDownOf, NoiseIsNoSpeedUpAndSerialIsAFullStop) {
  EXPECT_EQ(slow_down_of({1, 2, 0.99, 1.98}), (PairSlowDown{1, 1}));
  const PairSlowDown serial = slow_down_of({1, 2, 1, 3});  // b waited for a
  EXPECT_EQ(serial.a, 1);
  EXPECT_EQ(serial.b, 1000);
  EXPECT_THROW(slow_down_of({0, 1, 1, 1}), Error);
}

TEST(Contention, JsonRoundTrip) {
  const Contention contention = uniform_contention(0.3, 0.25);
  const Json json = to_json(contention);
  EXPECT_EQ(contention_from(JsonReader(json, "x")), contention);
  Json low = json;
  low["compute"]["inter_node"] = 0.5;
  EXPECT_THROW(contention_from(JsonReader(low, "x")), Error);
  Json extra = json;
  extra["compute"]["intranode"] = 1;
  EXPECT_THROW(contention_from(JsonReader(extra, "x")), Error);
}

}  // namespace
}  // namespace coterie::cost
