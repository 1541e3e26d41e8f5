// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/schedule/layer_plan.hpp"
#include "coterie/plan/schedule/layer_work.hpp"
#include "coterie/plan/schedule/schedules.hpp"
#include "coterie/plan/schedule/timeline.hpp"

namespace coterie::schedule {

/// A cluster whose devices differ. Work is that of the mean device; each device's is scaled.
struct ClusterOptions {
  std::int32_t num_nodes = 1;
  std::int32_t devices_per_node = 1;
  /// Standard deviation of the logarithm of a device's share of expert work and rows, drawn anew
  /// for each layer; 0: all alike.
  double load_spread = 0;
  /// The same of every single task's duration: other tenants, clocks.
  double jitter = 0;
  std::uint64_t seed = 0;
  std::int32_t drawn_layer = 0;    ///< layer whose tasks are kept in the timeline
  std::int32_t drawn_devices = 8;  ///< devices kept, spread evenly
};

struct ClusterRun {
  double step_s = 0;     ///< forward and backward of all layers on the slowest device
  double forward_s = 0;  ///< of that
  double even_s = 0;     ///< the same if all devices were alike: the sum of the plans
  std::int64_t num_tasks = 0;
  Timeline drawn;  ///< one layer, some devices; its times start at 0

  /// Share of the step that devices wait because others are slower.
  [[nodiscard]] double waiting() const { return step_s > 0 ? 1 - even_s / step_s : 0; }
};

/// Simulates a training step of `plans.size()` layers on every device. Collectives make their
/// members wait for each other: AG, RS and the dense part's those of a node, D, C and G the devices
/// of equal place in all nodes; each takes as long as its slowest member. Lanes keep the planned
/// order, and how far contention stretches a task is taken from the mean device's simulation, so a
/// step costs O(tasks x devices). `works` are unadapted, one a layer. Deterministic.
ClusterRun simulate_cluster(const Schedule& schedule, std::span<const LayerWork> works,
                            std::span<const LayerPlan> plans, const cost::Contention& contention,
                            const ClusterOptions& options);

}  // namespace coterie::schedule
