// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedules.hpp"

#include <algorithm>

namespace coterie::schedule {
namespace {

/// All ranks of a node exchange all of its tokens, so nothing is gathered; partial sums of the
/// expert shards meet in an all-reduce: a reduce-scatter, then an all-gather of the same bytes.
PhaseWork undeduplicated(PhaseWork work, std::int32_t devices_per_node) {
  work.dispatch.size *= devices_per_node;
  work.combine.size *= devices_per_node;
  const auto all_reduced = [](const Stage& scatter, const Stage& gather) {
    Stage stage = scatter;
    // One stage can carry one model: the sum of both, exact at this size and unchunked.
    const double extra_s = gather.time_s();
    const double own_s = scatter.time_s();
    const double factor = own_s > 0 ? (own_s + extra_s) / own_s : 1;
    stage.model = scatter.model.scaled(factor, factor);
    return stage;
  };
  work.scatter = all_reduced(work.scatter, work.gather);
  work.gather.size = 0;
  return work;
}

LayerWork adapt(const LayerWork& work) {
  LayerWork own = work;
  own.forward = undeduplicated(work.forward, work.devices_per_node);
  own.backward = undeduplicated(work.backward, work.devices_per_node);
  return own;
}

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  return kSequential.plan(planner, phase, options);
}

}  // namespace

const Schedule kDeepSpeedMoe = {"deepspeed_moe", "DeepSpeed-MoE", adapt, plan};

}  // namespace coterie::schedule
