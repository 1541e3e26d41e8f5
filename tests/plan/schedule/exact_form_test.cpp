// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/exact_form.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/plan/schedule/random_work.hpp"

namespace coterie::schedule {
namespace {

/// The MoE part of a layer alone, without shared experts, whose gradient takes `gradient_s`.
LayerWork moe_alone(Random& random) {
  LayerWork work = random_layer(random);
  for (PhaseWork* phase : {&work.forward, &work.backward}) {
    phase->attention.size = phase->dense_gather.size = phase->dense_scatter.size = 0;
    phase->shared_experts.size = 0;
  }
  return work;
}

double simulated_s(const LayerWork& work, PhasePlan plan, Phase phase) {
  Simulator simulator;
  PhasePlanner planner(work, simulator);
  planner.predict(plan, phase);
  return plan.predicted_s;
}

class ExactForm : public testing::TestWithParam<bool> {};

TEST_P(ExactForm, EqualsTheSimulatorOnThousandsOfRandomLayers) {
  const bool one_stream = GetParam();
  Random random(one_stream ? 11 : 12);
  double worst = 0;
  for (int round = 0; round < 5000; ++round) {
    const LayerWork work = moe_alone(random);
    const Phase phase = random.uniform() < 0.5 ? Phase::kForward : Phase::kBackward;
    const int chunks = 1 + static_cast<int>(random.below(16));
    PhasePlan plan;
    plan.shares = equal_shares(chunks);
    plan.one_stream = one_stream;
    double gradient_s = 0;
    if (phase == Phase::kBackward && work.gradient.size > 0) {
      plan.moe_gradients = {work.gradient.size};
      gradient_s = work.gradient.time_s();
    }
    const ChunkTimes times =
        chunk_times(phase == Phase::kForward ? work.forward : work.backward, chunks);
    const double exact_s = one_stream ? exact_one_stream(times, chunks, gradient_s)
                                      : exact_two_streams(times, chunks, gradient_s);
    const double time_s = simulated_s(work, plan, phase);
    worst = std::max(worst, std::abs(exact_s - time_s) / std::max(time_s, 1e-12));
  }
  EXPECT_LT(worst, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Streams, ExactForm, testing::Bool());

TEST(Glossary, TheDrawingInTheGlossaryIsTrue) {  // docs/concepts.md, "Schedules"
  const ChunkTimes times = {2, 2, 3, 2, 2};
  EXPECT_EQ(exact_one_stream(times, 2, 0), 16);
  EXPECT_EQ(exact_two_streams(times, 2, 0), 14);
  EXPECT_EQ(exact_two_streams({4, 4, 6, 4, 4}, 1, 0), 22);
}

/// A layer of the paper's form: C as D, AG as RS, one line each.
PhaseWork paper_phase(Random& random) {
  PhaseWork work;
  work.dispatch = random_stage(random, 1, 0);
  work.dispatch.calls = 1;
  work.combine = work.dispatch;
  work.gather = random_stage(random, 1, 0);
  work.scatter = work.gather;
  work.experts = random_stage(random, 3, 0);
  return work;
}

TEST(Algorithm1, ItsTimeIsExactForThePapersLayers) {
  Random random(21);
  for (int round = 0; round < 2000; ++round) {
    const PhaseWork work = paper_phase(random);
    const double gradient_s = round % 2 == 0 ? 0 : 2 * random.uniform();
    for (const int chunks : {1, 2, 5, 16}) {
      const double exact_s = exact_two_streams(chunk_times(work, chunks), chunks, gradient_s);
      EXPECT_NEAR(algorithm_1_time(work, gradient_s, chunks), exact_s, 1e-9 * exact_s);
    }
  }
}

TEST(Algorithm1, FindsTheBestCountOfThePapersLayers) {
  Random random(22);
  int equal = 0;
  for (int round = 0; round < 2000; ++round) {
    const PhaseWork work = paper_phase(random);
    const double gradient_s = round % 2 == 0 ? 0 : 2 * random.uniform();
    double least = 1e30;
    int best = 0;
    for (int chunks = 1; chunks <= 16; ++chunks) {
      const double time = exact_two_streams(chunk_times(work, chunks), chunks, gradient_s);
      if (time < least * (1 - 1e-12)) {
        least = time;
        best = chunks;
      }
    }
    const int found = algorithm_1(work, gradient_s, 16);
    ASSERT_GE(found, 1);
    ASSERT_LE(found, 16);
    equal += found == best ? 1 : 0;
    // The function of real r is convex, so one of the neighbours of its minimum is the best count.
    EXPECT_LE(exact_two_streams(chunk_times(work, found), found, gradient_s), least * (1 + 1e-9));
  }
  EXPECT_GT(equal, 1900);
}

TEST(Algorithm1, OverlooksAScatterThatIsSlowerThanTheGather) {
  // The blind spot of the closed form: t_rs is never tested against t_a2a.
  PhaseWork work;
  work.dispatch = {cost::CostModel(0.287, 0.5e-6), 1e6};
  work.combine = work.dispatch;
  work.gather = {cost::CostModel(0.1, 0.3e-6), 1e6};
  work.scatter = {cost::CostModel(0.9, 0.9e-6), 1e6};
  work.experts = {cost::CostModel(0.01, 0.1e-6), 1e6};
  const double paper_s = algorithm_1_time(work, 0, 4);
  const double exact_s = exact_two_streams(chunk_times(work, 4), 4, 0);
  EXPECT_LT(paper_s, 0.95 * exact_s);
}

}  // namespace
}  // namespace coterie::schedule
