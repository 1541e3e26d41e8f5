// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  COTERIE_REQUIRE(options.piece_bytes > 0, "Lina: piece of ", options.piece_bytes, " bytes");
  PhasePlan base;
  base.one_stream = true;
  if (phase == Phase::kBackward) {
    base.order = Order::kGradientLast;
    const double all = planner.work().gradient.size;
    for (double left = all; left > 0; left -= options.piece_bytes) {
      base.moe_gradients.push_back(std::min(left, options.piece_bytes));
    }
  }
  return planner.enumerate(base, phase, options);
}

}  // namespace

const Schedule kPipeMoeLina = {"pipe_moe_lina", "PipeMoE+Lina", nullptr, plan};

}  // namespace coterie::schedule
