// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions&) {
  PhasePlan plan;
  plan.one_stream = true;
  if (phase == Phase::kBackward) {
    plan.last_gradient = planner.work().gradient.size;
  }
  planner.predict(plan, phase);
  return {plan};
}

}  // namespace

const Schedule kSequential = {"sequential", "no overlap", nullptr, plan};

}  // namespace coterie::schedule
