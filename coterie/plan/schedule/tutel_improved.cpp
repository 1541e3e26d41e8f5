// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  PhasePlan base;
  base.one_stream = true;
  if (phase == Phase::kBackward) {
    base.dense_gradient = planner.work().gradient.size;
  }
  return planner.enumerate(base, phase, options);
}

}  // namespace

const Schedule kTutelImproved = {"tutel_improved", "Tutel-Improved", nullptr, plan};

}  // namespace coterie::schedule
