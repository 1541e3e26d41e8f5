// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/plan/schedule/phase_graph.hpp"

namespace coterie::schedule {
namespace {

constexpr std::array kSchedules = {&kSequential,  &kDeepSpeedMoe,   &kPipeMoe, &kTutelImproved,
                                   &kPipeMoeLina, &kFsmoeOneStream, &kFsmoe,   &kCoterie};

LayerWork adapted(const Schedule& schedule, const LayerWork& work) {
  return schedule.adapt != nullptr ? schedule.adapt(work) : work;
}

/// The first `count` plans that differ in what a device does, their lane orders fixed.
std::vector<PhasePlan> distinct(PhasePlanner& planner, std::vector<PhasePlan> plans, Phase phase,
                                std::size_t count) {
  std::vector<PhasePlan> kept;
  for (PhasePlan& plan : plans) {
    planner.fix_orders(plan, phase);
    const bool is_new = std::ranges::none_of(kept, [&](const PhasePlan& other) {
      return other.shares == plan.shares && other.lane_orders == plan.lane_orders;
    });
    if (is_new) {
      kept.push_back(std::move(plan));
    }
    if (kept.size() == count) {
      break;
    }
  }
  return kept;
}

}  // namespace

std::span<const Schedule* const> schedules() {
  return kSchedules;
}

const Schedule& find_schedule(std::string_view name) {
  std::string names;
  for (const Schedule* schedule : kSchedules) {
    if (schedule->name == name) {
      return *schedule;
    }
    names += (names.empty() ? "" : ", ") + std::string(schedule->name);
  }
  fail(ErrorCode::kBadInput, "no schedule is called \"", name, "\"; there are ", names);
}

std::vector<LayerPlan> plan_candidates(const Schedule& schedule, const LayerWork& work,
                                       const cost::Contention& contention,
                                       const PlanOptions& options, std::size_t count) {
  COTERIE_REQUIRE(count >= 1, "plan candidates: asked for ", count);
  const LayerWork own = adapted(schedule, work);
  Simulator simulator(contention);
  PhasePlanner planner(own, simulator);
  const auto forward =
      distinct(planner, schedule.plan(planner, Phase::kForward, options), Phase::kForward, count);
  const auto backward =
      distinct(planner, schedule.plan(planner, Phase::kBackward, options), Phase::kBackward, count);
  std::vector<LayerPlan> plans;
  for (std::size_t i = 0; i < std::max(forward.size(), backward.size()); ++i) {
    plans.push_back({std::string(schedule.name), forward[std::min(i, forward.size() - 1)],
                     backward[std::min(i, backward.size() - 1)]});
  }
  return plans;
}

LayerPlan plan_layer(const Schedule& schedule, const LayerWork& work,
                     const cost::Contention& contention, const PlanOptions& options) {
  return plan_candidates(schedule, work, contention, options, 1).front();
}

Timeline simulate_phase(const Schedule& schedule, const LayerWork& work, const LayerPlan& plan,
                        Phase phase, const cost::Contention& contention) {
  TaskGraph graph;
  build_phase(adapted(schedule, work), phase == Phase::kForward ? plan.forward : plan.backward,
              phase, graph);
  Simulator simulator(contention);
  simulator.run(graph);
  Timeline timeline = simulator.timeline(graph, phase);
  timeline.name = plan.schedule;
  return timeline;
}

Timeline simulate_layer(const Schedule& schedule, const LayerWork& work, const LayerPlan& plan,
                        const cost::Contention& contention) {
  return join(simulate_phase(schedule, work, plan, Phase::kForward, contention),
              simulate_phase(schedule, work, plan, Phase::kBackward, contention));
}

}  // namespace coterie::schedule
