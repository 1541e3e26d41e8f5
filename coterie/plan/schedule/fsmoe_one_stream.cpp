// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  return plan_paper_partition(planner, phase, options, true);
}

}  // namespace

const Schedule kFsmoeOneStream = {"fsmoe_one_stream", "FSMoE-No-IIO", nullptr, plan};

}  // namespace coterie::schedule
