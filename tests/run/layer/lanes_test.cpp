// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/lanes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/layer/phase_steps.hpp"
#include "tests/run/layer/lane_plans.hpp"

namespace coterie::layer {
namespace {

using schedule::TaskKind;

TEST(Lanes, LanesRunAtTheSameTimeAndKeepOrdersAndDependencies) {
  Lanes lanes;
  Random random(5, 0);
  for (int round = 0; round < 200; ++round) {
    // Task i may wait for earlier tasks only, and lanes keep ascending order: always possible.
    std::vector<LaneTask> tasks(12);
    LaneOrders orders;
    std::vector<std::atomic<int>> ended(tasks.size());
    std::atomic<int> num_wrong = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      for (std::size_t before = 0; before < i; ++before) {
        if (random.below(4) == 0) {
          tasks[i].after.push_back(static_cast<std::int32_t>(before));
        }
      }
      const auto wait = std::chrono::microseconds(random.below(50));
      tasks[i].run = [&, i, wait] {
        for (const std::int32_t before : tasks[i].after) {
          num_wrong += ended[static_cast<std::size_t>(before)] == 0 ? 1 : 0;
        }
        std::this_thread::sleep_for(wait);
        ended[i] = 1;
      };
      orders[random.below(3)].push_back(static_cast<std::int32_t>(i));
    }
    lanes.run(tasks, orders);
    EXPECT_EQ(num_wrong, 0);
    for (const auto& end : ended) {
      EXPECT_EQ(end, 1);
    }
  }
  // Three tasks that wait for each other: possible only if the lanes run at the same time.
  std::atomic<int> num_here = 0;
  std::vector<LaneTask> tasks(3);
  for (LaneTask& task : tasks) {
    task.run = [&] {
      ++num_here;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (num_here < 3 && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      EXPECT_EQ(num_here, 3);
    };
  }
  lanes.run(tasks, {{{0}, {1}, {2}}});
}

TEST(Lanes, AFailureStopsAllLanesAndTheNextRunWorks) {
  Lanes lanes;
  for (std::size_t failing = 0; failing < 3; ++failing) {
    std::atomic<int> num_after = 0;
    std::vector<LaneTask> tasks(4);
    for (std::size_t i = 0; i < 3; ++i) {
      tasks[i].run = [i, failing] {
        if (i == failing) {
          throw std::runtime_error("no memory");
        }
      };
    }
    tasks[3].after = {0, 1, 2};
    tasks[3].run = [&] { ++num_after; };
    EXPECT_THROW(lanes.run(tasks, {{{0}, {1}, {2, 3}}}), std::runtime_error);
    EXPECT_EQ(num_after, 0);
    tasks[failing].run = [] {};
    lanes.run(tasks, {{{0}, {1}, {2, 3}}});
    EXPECT_EQ(num_after, 1);
  }
}

TEST(Lanes, RefusesOrdersThatCannotBe) {
  Lanes lanes;
  std::vector<LaneTask> tasks(2);
  tasks[0].run = tasks[1].run = [] {};
  EXPECT_THROW(lanes.run(tasks, {{{0}, {}, {}}}), Error);
  EXPECT_THROW(lanes.run(tasks, {{{0, 0, 1}, {}, {}}}), Error);
  tasks[0].after = {1};
  EXPECT_THROW(lanes.run(tasks, {{{0, 1}, {}, {}}}), Error);
  lanes.run(tasks, {{{0}, {1}, {}}});
}

TEST(PhaseSteps, EveryScheduleCanBeCarriedOut) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const schedule::Schedule* each : schedule::schedules()) {
      const auto plan = schedule::plan_layer(*each, lane_work(seed), {});
      for (const schedule::PhasePlan* phase : {&plan.forward, &plan.backward}) {
        const StepActions nothing;
        const PhaseSteps steps = steps_of(*phase, nothing, "plan");
        std::set<std::int32_t> weighed;
        std::int32_t num_pieces = 0;
        for (const LaneTask& task : steps.tasks) {
          num_pieces += task.kind == TaskKind::kGradient ? 1 : 0;
        }
        EXPECT_EQ(num_pieces, std::ssize(phase->moe_gradients)) << each->name;
        EXPECT_GE(std::ssize(steps.tasks), 5 * phase->num_chunks()) << each->name;
      }
    }
  }
}

TEST(PhaseSteps, WhatAPlanDoesNotNameRunsBesideItsNeighbour) {
  schedule::PhasePlan plan;
  plan.shares = {0.5, 0.5};
  std::string seen;
  StepActions actions;
  const auto note = [&](const char* name) {
    return [&seen, name](std::int32_t chunk) { seen += name + std::to_string(chunk + 1) + " "; };
  };
  actions.send_out = note("D");
  actions.gather_in = note("AG");
  actions.experts = note("E");
  actions.scatter_sums = note("RS");
  actions.bring_home = note("C");
  plan.lane_orders[0] = "A1 E1 E2";
  const PhaseSteps steps = steps_of(plan, actions, "plan");
  Lanes lanes;
  lanes.run(steps.tasks, steps.orders);
  EXPECT_EQ(seen, "D1 AG1 E1 RS1 C1 D2 AG2 E2 RS2 C2 ");
}

TEST(PhaseSteps, NamesWhatIsWrong) {
  schedule::PhasePlan plan;
  plan.shares = {0.5, 0.5};
  const auto message = [&](const char* compute, const char* inter) {
    plan.lane_orders = {compute, inter, ""};
    try {
      const StepActions nothing;
      steps_of(plan, nothing, "layer 3: forward plan");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("", "").find("layer 3: forward plan: the plan has no order"),
            std::string::npos);
  EXPECT_NE(message("E1", "").find("1 of 2 tasks E"), std::string::npos);
  EXPECT_NE(message("E2 E1", "").find("out of order"), std::string::npos);
  EXPECT_NE(message("E1 E2", "D1 C1 C2").find("1 of 2 tasks D"), std::string::npos);
  EXPECT_NE(message("E1 E2", "X1").find("'X1'"), std::string::npos);
  EXPECT_NE(message("E1 E2", "D1 D1 C1 C2").find("D1 twice"), std::string::npos);
  EXPECT_NE(message("E1 E2", "D1 D3 C1 C2").find("D3 of 2"), std::string::npos);
  EXPECT_EQ(message("E1 E2", "D1 D2 C1 C2"), "");
}

}  // namespace
}  // namespace coterie::layer
