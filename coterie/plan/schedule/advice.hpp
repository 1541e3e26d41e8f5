// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/plan/schedule/layer_sizes.hpp"
#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {

/// A change of the machine, the placement or the batch, and what it would be worth.
struct Advice {
  std::string_view name;  ///< "inter_node_bandwidth", "replicas", ...
  std::string what;       ///< in words
  double time_s = 0;      ///< of a step of all layers, for today's tokens
  double speed_up = 1;    ///< today's time over that

  bool operator==(const Advice&) const = default;
};

/// Re-plans all layers under one change at a time: links or products twice as fast, a fifth fewer
/// replicas, even loads, twice the tokens. The most helpful first.
std::vector<Advice> advise(const Schedule& schedule, const BlockShape& shape,
                           std::span<const RoutingLoad> loads, const cost::ClusterProfile& profile,
                           std::string_view engine = "", const PlanOptions& options = {});

/// Seconds of a step of all layers as the schedule plans them.
double planned_step_s(const Schedule& schedule, const BlockShape& shape,
                      std::span<const RoutingLoad> loads, const cost::ClusterProfile& profile,
                      std::string_view engine = "", const PlanOptions& options = {});

}  // namespace coterie::schedule
