// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/layer/lanes.hpp"

namespace coterie::layer {

/// What the steps of a phase do. `chunk` counts from 0.
struct StepActions {
  std::function<void(std::int32_t chunk)> send_out;   ///< D
  std::function<void(std::int32_t chunk)> gather_in;  ///< AG
  std::function<void(std::int32_t chunk)> experts;    ///< E
  /// W: weight gradients of chunks [first, end), where the plan puts them off.
  std::function<void(std::int32_t first, std::int32_t end)> weights;
  std::function<void(std::int32_t chunk)> scatter_sums;  ///< RS
  std::function<void(std::int32_t chunk)> bring_home;    ///< C
  std::function<void(std::int32_t piece)> gradient;      ///< G; may be empty: nothing is sent
};

/// The steps of one phase that a layer carries out: the MoE part of a plan. The dense part (A, g,
/// s, S, and the gradients beside it) is its caller's.
struct PhaseSteps {
  std::vector<LaneTask> tasks;
  LaneOrders orders;
};

/// Lays out a plan's steps as its lane orders say. A kind of exchange that the plan does not name
/// at all, because it takes no time there (D and C on one node, AG and RS without sharded experts),
/// runs beside its neighbour. kBadInput naming `where` and the task if the plan has no orders,
/// leaves out single steps, or runs E or W out of order of chunks, which fixes the bits of weight
/// gradients.
PhaseSteps steps_of(const schedule::PhasePlan& plan, const StepActions& actions,
                    const std::string& where);

/// Chunks [first, end) whose weight gradients task number `task` of `num_tasks` makes; as the
/// planner deals them out.
struct ChunkRange {
  std::int32_t first = 0;
  std::int32_t end = 0;
};
ChunkRange weight_chunks(std::int32_t num_chunks, std::int32_t num_tasks, std::int32_t task);

}  // namespace coterie::layer
