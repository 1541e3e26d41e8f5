// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
std::vector<PhasePlan> plan_paper_partition(PhasePlanner& planner, Phase phase,
                                            const PlanOptions& options, bool one_stream) {
  PhasePlan base;
  base.one_stream = one_stream;
  if (phase == Phase::kBackward) {
    base.dense_gradient = planner.dense_window_bytes();
    const double rest = planner.work().gradient.size - base.dense_gradient;
    if (rest > 0) {
      base.moe_gradients = {rest};
    }
  }
  return planner.enumerate(base, phase, options);
}

namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  return plan_paper_partition(planner, phase, options, false);
}

}  // namespace

const Schedule kFsmoe = {"fsmoe", "FSMoE", nullptr, plan};

}  // namespace coterie::schedule
