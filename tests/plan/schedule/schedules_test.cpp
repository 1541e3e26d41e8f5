// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "coterie/base/error.hpp"
#include "tests/plan/schedule/random_work.hpp"

namespace coterie::schedule {
namespace {

double bytes_sent(const PhasePlan& plan) {
  return std::accumulate(plan.moe_gradients.begin(), plan.moe_gradients.end(), 0.0) +
         plan.dense_gradient + plan.last_gradient;
}

TEST(Schedules, EveryPlanIsCompleteAndSaysWhatItTakes) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    const LayerWork work = random_layer(random);
    const cost::Contention contention = random_contention(random);
    for (const Schedule* schedule : schedules()) {
      const LayerPlan plan = plan_layer(*schedule, work, contention);
      EXPECT_EQ(plan.schedule, schedule->name);
      EXPECT_EQ(bytes_sent(plan.forward), 0);
      EXPECT_NEAR(bytes_sent(plan.backward), work.gradient.size, 1e-6) << schedule->name;
      const Timeline timeline = simulate_layer(*schedule, work, plan, contention);
      EXPECT_NEAR(timeline.end_s(), plan.predicted_s(), 1e-9 * plan.predicted_s());
      EXPECT_LE(plan.forward.moe_s, plan.forward.predicted_s * (1 + 1e-9));
      EXPECT_EQ(plan_layer(*schedule, work, contention), plan);  // deterministic
      const Json json = to_json(plan);
      EXPECT_EQ(layer_plan_from(JsonReader(json, "plan")), plan);
    }
  }
}

TEST(Schedules, LanesRunOneTaskAtATimeAndChunksKeepTheirOrderOfSteps) {
  Random random(2);
  const TaskKind steps[] = {TaskKind::kDispatch, TaskKind::kGather, TaskKind::kExperts,
                            TaskKind::kScatter, TaskKind::kCombine};
  for (int round = 0; round < 60; ++round) {
    const LayerWork work = random_layer(random);
    const cost::Contention contention = random_contention(random);
    PlanOptions options;
    options.pipelines_attention = round % 2 == 0;
    const LayerPlan plan = plan_layer(kCoterie, work, contention, options);
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      const Timeline timeline = simulate_phase(kCoterie, work, plan, phase, contention);
      std::map<Lane, std::vector<std::pair<double, double>>> lanes;
      std::map<int, std::map<TaskKind, Span>> chunks;
      for (const Span& span : timeline.spans) {
        lanes[span.lane].emplace_back(span.start_s, span.end_s);
        chunks[span.chunk][span.kind] = span;
      }
      for (auto& [lane, spans] : lanes) {
        std::ranges::sort(spans);
        for (std::size_t i = 1; i < spans.size(); ++i) {
          EXPECT_GE(spans[i].first, spans[i - 1].second - 1e-12);
        }
      }
      for (auto& [chunk, spans] : chunks) {
        double end = 0;
        for (const TaskKind step : steps) {
          if (spans.contains(step)) {
            EXPECT_GE(spans[step].start_s, end - 1e-12);
            end = spans[step].end_s;
          }
        }
      }
    }
  }
}

TEST(Schedules, OursIsNeverSlowerThanFsmoeNorThanOneStream) {
  Random random(3);
  double gain = 0;
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    const LayerWork work = random_layer(random);
    const cost::Contention contention = random_contention(random);
    for (const bool puts_off : {false, true}) {
      PlanOptions options;
      options.puts_off_weights = puts_off;
      const double ours = plan_layer(kCoterie, work, contention, options).predicted_s();
      const double fsmoe = plan_layer(kFsmoe, work, contention).predicted_s();
      EXPECT_LE(ours, fsmoe * (1 + 1e-9)) << round;
      if (!contention.is_free()) {
        EXPECT_LE(ours, plan_layer(kFsmoeOneStream, work, contention).predicted_s() * (1 + 1e-9));
      }
      gain += fsmoe / ours / (2 * kRounds);
    }
  }
  EXPECT_GT(gain, 1.02);
}

TEST(Schedules, ContentionStrongEnoughLeadsBackToOneStream) {
  Random random(4);
  int one_stream = 0;
  for (int round = 0; round < 30; ++round) {
    LayerWork work = random_layer(random);
    const LayerPlan plan = plan_layer(kCoterie, work, cost::uniform_contention(3, 0));
    one_stream += plan.forward.one_stream || plan.forward.num_chunks() == 1 ? 1 : 0;
  }
  EXPECT_GT(one_stream, 20);
}

TEST(Schedules, SequentialIsTheSumOfItsSteps) {
  Random random(5);
  const LayerWork work = random_layer(random);
  const LayerPlan plan = plan_layer(kSequential, work, cost::uniform_contention(0.5, 0.5));
  const PhaseWork& b = work.backward;
  const double tail_s = std::max(b.shared_experts.time_s(),  // runs behind E, beside RS and C
                                 b.scatter.time_s() + b.combine.time_s());
  if (b.shared_experts.size <= 0) {
    EXPECT_NEAR(plan.backward.predicted_s,
                b.dispatch.time_s() + b.gather.time_s() + b.experts.time_s() + b.weights.time_s() +
                    tail_s + b.dense_s() + work.gradient.time_s(),
                1e-9);
  }
}

TEST(Schedules, DeepSpeedCarriesEveryTokenOfTheNode) {
  Random random(6);
  LayerWork work = random_layer(random);
  work.forward = random_phase(random, false);
  work.forward.dispatch = work.forward.combine = {cost::CostModel(0, 1e-6), 1e6, 1};
  work.forward.gather = {cost::CostModel(0, 2e-7), 1e6, 1};
  work.forward.scatter = {cost::CostModel(0, 3e-7), 1e6, 1};
  work.devices_per_node = 8;
  work.forward.shared_experts = {};
  const LayerPlan plan = plan_layer(kDeepSpeedMoe, work, {});
  EXPECT_NEAR(plan.forward.moe_s, 8 + 8 + 0.5 + work.forward.experts.time_s(), 1e-9);
}

TEST(Schedules, PipelinedAttentionAndPutOffWeightsOnlyHelp) {
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    const LayerWork work = random_layer(random);
    PlanOptions plain;
    plain.puts_off_weights = false;
    PlanOptions more = plain;
    more.pipelines_attention = true;
    const double plain_s = plan_layer(kCoterie, work, {}, plain).predicted_s();
    EXPECT_LE(plan_layer(kCoterie, work, {}, more).predicted_s(), plain_s * 1.001);
    EXPECT_LE(plan_layer(kCoterie, work, {}).predicted_s(), plain_s * 1.001);
  }
}

TEST(Planner, TheOracleIsNeverWorseAndTheSearchIsNearIt) {
  Random random(8);
  double regret = 0;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const LayerWork work = random_layer(random);
    const cost::Contention contention = random_contention(random);
    PlanOptions oracle;
    oracle.planner = Planner::kOracle;
    oracle.most_chunks = 8;
    PlanOptions quick;
    quick.most_chunks = 8;
    const double best_s = plan_layer(kCoterie, work, contention, oracle).predicted_s();
    const double quick_s = plan_layer(kCoterie, work, contention, quick).predicted_s();
    EXPECT_LE(best_s, quick_s * 1.002);
    regret += (quick_s / best_s - 1) / kRounds;
  }
  EXPECT_LT(regret, 0.02);
}

TEST(Planner, Algorithm1AndEnumerationAgreeWithoutContention) {
  Random random(9);
  double regret = 0;
  for (int round = 0; round < 100; ++round) {
    LayerWork work = random_layer(random);
    work.forward.combine = work.forward.dispatch;
    work.forward.scatter = work.forward.gather;
    work.forward.shared_experts = {};
    PlanOptions closed;
    closed.planner = Planner::kAlgorithm1;
    const double enumerated = plan_layer(kFsmoe, work, {}).forward.predicted_s;
    const double by_form = plan_layer(kFsmoe, work, {}, closed).forward.predicted_s;
    EXPECT_GE(by_form, enumerated * (1 - 1e-12));
    regret = std::max(regret, by_form / enumerated - 1);
  }
  EXPECT_LT(regret, 1e-6);
}

TEST(Planner, CandidatesAreBestFirstAndDiffer) {
  Random random(10);
  const LayerWork work = random_layer(random);
  for (const Schedule* schedule : schedules()) {
    const auto plans = plan_candidates(*schedule, work, {}, {}, 3);
    ASSERT_GE(plans.size(), 1U);
    ASSERT_LE(plans.size(), 3U);
    EXPECT_EQ(plans[0], plan_layer(*schedule, work, {}));
    for (std::size_t i = 1; i < plans.size(); ++i) {
      EXPECT_GE(plans[i].predicted_s(), plans[i - 1].predicted_s());
      EXPECT_NE(plans[i], plans[i - 1]);
    }
  }
}

TEST(Schedules, NamesAreFoundAndOthersRefused) {
  std::set<std::string_view> names;
  for (const Schedule* schedule : schedules()) {
    EXPECT_EQ(&find_schedule(schedule->name), schedule);
    names.insert(schedule->name);
  }
  EXPECT_EQ(names.size(), 8U);
  EXPECT_THROW(find_schedule("tutel"), Error);
  EXPECT_THROW(planner_of("slsqp"), Error);
  EXPECT_EQ(planner_of("oracle"), Planner::kOracle);
}

TEST(PhasePlan, BadSharesAndFilesAreRefused) {
  Random random(11);
  const LayerWork work = random_layer(random);
  Simulator simulator;
  PhasePlanner planner(work, simulator);
  for (const auto& shares : std::vector<std::vector<double>>{{}, {0.5}, {1.5, -0.5}, {0, 1}}) {
    PhasePlan plan;
    plan.shares = shares;
    EXPECT_THROW(planner.predict(plan, Phase::kForward), Error);
  }
  const Json good = to_json(plan_layer(kCoterie, work, {}));
  for (const auto* key : {"shares", "order", "one_stream", "predicted_s", "lane_orders"}) {
    Json bad = good;
    bad["backward"].erase(key);
    EXPECT_THROW(layer_plan_from(JsonReader(bad, "plan")), Error) << key;
  }
  Json bad = good;
  bad["forward"]["order"] = "fastest";
  EXPECT_THROW(layer_plan_from(JsonReader(bad, "plan")), Error);
}

}  // namespace
}  // namespace coterie::schedule
