// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/plan/schedule/layer_plan.hpp"
#include "coterie/plan/schedule/layer_work.hpp"
#include "coterie/plan/schedule/task_graph.hpp"

namespace coterie::schedule {

/// The tasks of one phase of a layer, as planned. `graph` is cleared first. With r chunks:
///
///   forward    g - A - s - [ D_i - AG_i - E_i - RS_i - C_i ]      S beside the chunks
///   backward   [ D_i - AG_i - E_i - RS_i - C_i ] - g - A - s      G pieces on the inter lane
///
/// Gradient pieces are those of the block behind, ready when the phase starts (steady state).
/// kBadInput if shares are not positive or do not sum to 1.
void build_phase(const LayerWork& work, const PhasePlan& plan, Phase phase, TaskGraph& graph);

/// "D1 D2 C1": a lane's tasks in this order.
std::string order_text(const TaskGraph& graph, std::span<const TaskId> order);

}  // namespace coterie::schedule
