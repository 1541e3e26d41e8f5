// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  PhasePlan base;
  base.one_stream = true;
  if (phase == Phase::kBackward) {
    base.last_gradient = planner.work().gradient.size;
  }
  return planner.enumerate(base, phase, options);
}

}  // namespace

const Schedule kPipeMoe = {"pipe_moe", "Tutel/PipeMoE", nullptr, plan};

}  // namespace coterie::schedule
