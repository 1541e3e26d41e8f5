// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/plan/schedule/task_graph.hpp"

namespace coterie::schedule {

/// One task from when to when, simulated or measured.
struct Span {
  TaskKind kind = TaskKind::kExperts;
  Lane lane = Lane::kCompute;
  Phase phase = Phase::kForward;
  std::int32_t chunk = 0;
  std::int32_t layer = 0;
  std::int32_t device = 0;
  double start_s = 0;
  double end_s = 0;

  bool operator==(const Span&) const = default;
};

/// "D1", "AG3", "G2"; chunks count from 1 for people.
std::string label_of(const Span& span);

/// Who did what from when to when. The same for a simulated and a measured run, so that one chart
/// draws both and the cost model's error is a number.
struct Timeline {
  std::string name;
  std::vector<Span> spans;

  /// End of the last span, 0 without spans; seconds from the timeline's zero.
  [[nodiscard]] double end_s() const;
  /// Seconds in which `lane` of `device` has a task.
  [[nodiscard]] double busy_s(Lane lane, std::int32_t device = 0) const;
  /// Seconds in which both lanes of `device` have a task: what overlap hides.
  [[nodiscard]] double both_busy_s(Lane a, Lane b, std::int32_t device = 0) const;

  bool operator==(const Timeline&) const = default;
};

/// `later` put behind `first`, its spans moved by first.end_s().
Timeline join(Timeline first, const Timeline& later);

/// Mean over tasks of |a - b| / b of the durations, tasks matched by device, layer, phase, kind and
/// chunk; tasks that only one has are left out. 0 if nothing matches.
double mean_duration_error(const Timeline& predicted, const Timeline& measured);

Json to_json(const Timeline& timeline);
/// Reads what to_json wrote; kBadInput names the place.
Timeline timeline_from(const Json& json, const std::string& source);

}  // namespace coterie::schedule
