// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

/// Steady state of the paper's gradient partition (section 5.2): the dense window first, the rest
/// between the last D and the first C.
std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  PhasePlan base;
  base.one_stream = true;
  if (phase == Phase::kBackward) {
    base.dense_gradient = planner.dense_window_bytes();
    const double rest = planner.work().gradient.size - base.dense_gradient;
    if (rest > 0) {
      base.moe_gradients = {rest};
    }
  }
  return planner.enumerate(base, phase, options);
}

}  // namespace

const Schedule kFsmoeOneStream = {"fsmoe_one_stream", "FSMoE-No-IIO", nullptr, plan};

}  // namespace coterie::schedule
