// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "coterie/plan/schedule/layer_plan.hpp"
#include "coterie/plan/schedule/layer_work.hpp"
#include "coterie/plan/schedule/planner.hpp"

namespace coterie::schedule {

/// A way to order and cut the steps of a layer. One file each; schedules() lists them.
struct Schedule {
  std::string_view name;   ///< as users give it
  std::string_view label;  ///< as reports show it
  /// What the schedule makes of a layer's work; nullptr: the work as it is.
  LayerWork (*adapt)(const LayerWork& work);
  /// Plans one phase. `planner.work()` is the adapted work. The result is predicted, lane orders
  /// not yet fixed. Best first, several where chunk counts compete (at least one).
  std::vector<PhasePlan> (*plan)(PhasePlanner& planner, Phase phase, const PlanOptions& options);
};

/// "sequential": one step after the other, gradients last. The baseline of every report.
extern const Schedule kSequential;
/// "deepspeed_moe": no de-duplication over the ranks of a node: every rank exchanges all tokens of
/// the node, experts end in an all-reduce (the layout is our reading: FSMoE does not state it).
extern const Schedule kDeepSpeedMoe;
/// "pipe_moe": Tutel with PipeMoE: chunks on one communication stream, gradients last.
extern const Schedule kPipeMoe;
/// "tutel_improved": pipe_moe with the gradients beside the dense part.
extern const Schedule kTutelImproved;
/// "pipe_moe_lina": pipe_moe with gradients in fixed pieces that run while no exchange is ready.
extern const Schedule kPipeMoeLina;
/// "fsmoe_one_stream": FSMoE-No-IIO: gradients fill the dense part, then the MoE part; links inside
/// and between nodes take turns.
extern const Schedule kFsmoeOneStream;
/// "fsmoe": both links at once, equal chunks, FIFO (FSMoE, section 4).
extern const Schedule kFsmoe;
/// "coterie": ours. Unequal chunks, later-stage-first order, shared experts in the gaps, gradients
/// where they cost least, one stream where overlap loses.
extern const Schedule kCoterie;

/// What FSMoE and FSMoE-No-IIO share: the steady state of the paper's gradient partition (section
/// 5.2), the dense window first, the rest between the last D and the first C.
std::vector<PhasePlan> plan_paper_partition(PhasePlanner& planner, Phase phase,
                                            const PlanOptions& options, bool one_stream);

/// All, from the plainest to ours.
std::span<const Schedule* const> schedules();
/// kBadInput lists the names if there is none such.
const Schedule& find_schedule(std::string_view name);

/// The plan of a layer: each phase's best, its lane orders fixed. Deterministic.
LayerPlan plan_layer(const Schedule& schedule, const LayerWork& work,
                     const cost::Contention& contention, const PlanOptions& options = {});

/// The most promising plans, best first, for a caller that measures them and keeps the fastest:
/// phases are ranked apart and paired by rank. At most `count`.
std::vector<LayerPlan> plan_candidates(const Schedule& schedule, const LayerWork& work,
                                       const cost::Contention& contention,
                                       const PlanOptions& options = {}, std::size_t count = 3);

/// A planned phase as a timeline.
Timeline simulate_phase(const Schedule& schedule, const LayerWork& work, const LayerPlan& plan,
                        Phase phase, const cost::Contention& contention);

/// Forward, then backward.
Timeline simulate_layer(const Schedule& schedule, const LayerWork& work, const LayerPlan& plan,
                        const cost::Contention& contention);

}  // namespace coterie::schedule
