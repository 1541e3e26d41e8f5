// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/simulator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::schedule {
namespace {

using cost::Resource;

Task task(Lane lane, double work_s, std::int32_t rank = 0) {
  const std::array resources = {Resource::kCompute, Resource::kInterNode, Resource::kIntraNode};
  Task made;
  made.lane = lane;
  made.resource = resources[static_cast<std::size_t>(lane)];
  made.work_s = work_s;
  made.rank = rank;
  return made;
}

TEST(Simulator, AnEmptyGraphTakesNoTime) {
  Simulator simulator;
  EXPECT_EQ(simulator.run(TaskGraph()), 0);
}

TEST(Simulator, FifoHeadsWaitAndLanesOverlap) {
  TaskGraph graph;
  const TaskId a = graph.add(task(Lane::kInter, 2));
  const TaskId b = graph.add(task(Lane::kCompute, 3), {a});
  graph.add(task(Lane::kInter, 1), {b});  // holds back the next in its lane
  const TaskId d = graph.add(task(Lane::kInter, 1));
  Simulator simulator;
  EXPECT_DOUBLE_EQ(simulator.run(graph), 7);
  EXPECT_DOUBLE_EQ(simulator.starts_s()[static_cast<std::size_t>(d)], 6);
  graph.set_queue(Lane::kInter, Queue::kPriority);
  EXPECT_DOUBLE_EQ(simulator.run(graph), 6);  // d runs in the gap
  EXPECT_DOUBLE_EQ(simulator.starts_s()[static_cast<std::size_t>(d)], 2);
}

TEST(Simulator, LowRanksGoFirstAndNothingIsPreempted) {
  TaskGraph graph;
  graph.set_queue(Lane::kInter, Queue::kPriority);
  const TaskId early = graph.add(task(Lane::kCompute, 1));
  const TaskId late = graph.add(task(Lane::kInter, 5, 9));
  const TaskId next = graph.add(task(Lane::kInter, 1, 5));
  const TaskId urgent = graph.add(task(Lane::kInter, 1, 0), {early});
  Simulator simulator;
  simulator.run(graph);
  EXPECT_EQ(simulator.starts_s()[static_cast<std::size_t>(next)], 0);
  EXPECT_EQ(simulator.starts_s()[static_cast<std::size_t>(urgent)], 1);
  EXPECT_EQ(simulator.starts_s()[static_cast<std::size_t>(late)], 2);
  const auto orders = simulator.lane_orders(graph);
  EXPECT_EQ(orders[static_cast<std::size_t>(Lane::kInter)], (std::vector{next, urgent, late}));
}

TEST(Simulator, ContentionSlowsWhileBothRun) {
  TaskGraph graph;
  graph.add(task(Lane::kInter, 1));
  graph.add(task(Lane::kIntra, 2));
  Simulator simulator(cost::uniform_contention(0.5));
  // Both at 1 / 1.5 until 1.5, when the first ends; the other has done 1 of 2.
  EXPECT_DOUBLE_EQ(simulator.run(graph), 2.5);
  EXPECT_DOUBLE_EQ(simulator.ends_s()[0], 1.5);
  graph.add(task(Lane::kCompute, 10));
  EXPECT_DOUBLE_EQ(simulator.run(graph), 10);  // links do not slow compute unless said
}

TEST(Simulator, SlowDownsOfSeveralAddUp) {
  TaskGraph graph;
  for (const Lane lane : {Lane::kInter, Lane::kIntra, Lane::kCompute}) {
    graph.add(task(lane, 1));
  }
  Simulator simulator(cost::uniform_contention(0.5, 0.25));
  simulator.run(graph);
  EXPECT_DOUBLE_EQ(simulator.ends_s()[2], 1.5);  // compute: 1 + .25 + .25
}

TEST(Simulator, MeasuredFactorsComeBackOutOfASimulatedPair) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    cost::Contention contention;
    contention.set(Resource::kInterNode, Resource::kCompute, 1 + random.uniform());
    contention.set(Resource::kCompute, Resource::kInterNode, 1 + random.uniform());
    TaskGraph graph;
    graph.add(task(Lane::kInter, 0.5 + random.uniform()));
    graph.add(task(Lane::kCompute, 0.5 + random.uniform()));
    Simulator simulator(contention);
    simulator.run(graph);
    const auto found = cost::slow_down_of(
        {graph.task(0).work_s, graph.task(1).work_s, simulator.ends_s()[0], simulator.ends_s()[1]});
    EXPECT_NEAR(found.a, contention.factor(Resource::kInterNode, Resource::kCompute), 1e-9);
    EXPECT_NEAR(found.b, contention.factor(Resource::kCompute, Resource::kInterNode), 1e-9);
  }
}

TEST(Simulator, AFixedOrderGivesTheSameTimesAsThePriorities) {
  Random random(4);
  Simulator simulator(cost::uniform_contention(0.3, 0.1));
  for (int round = 0; round < 500; ++round) {
    TaskGraph graph;
    for (const Lane lane : {Lane::kInter, Lane::kIntra, Lane::kCompute}) {
      graph.set_queue(lane, Queue::kPriority);
    }
    for (int i = 0; i < 30; ++i) {
      const auto lane = static_cast<Lane>(random.below(3));
      const auto before = static_cast<TaskId>(random.below(static_cast<std::uint64_t>(i) + 1)) - 1;
      graph.add(task(lane, 0.01 + random.uniform(), static_cast<std::int32_t>(random.below(5))),
                {before});
    }
    const double time_s = simulator.run(graph);
    auto orders = simulator.lane_orders(graph);
    for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
      graph.set_order(static_cast<Lane>(lane), orders[lane]);
    }
    EXPECT_NEAR(simulator.run(graph), time_s, 1e-9 * time_s);
  }
}

TEST(Simulator, RefusesOrdersThatWaitForEachOther) {
  TaskGraph graph;
  const TaskId a = graph.add(task(Lane::kInter, 1));
  const TaskId b = graph.add(task(Lane::kInter, 1), {a});
  graph.set_order(Lane::kInter, {b, a});
  Simulator simulator;
  EXPECT_THROW(simulator.run(graph), Error);
  EXPECT_THROW(graph.set_order(Lane::kInter, {a}), Error);
  EXPECT_THROW(graph.set_order(Lane::kCompute, {a}), Error);
  graph.clear();
  EXPECT_EQ(simulator.run(graph), 0);
}

}  // namespace
}  // namespace coterie::schedule
