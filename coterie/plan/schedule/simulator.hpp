// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/schedule/task_graph.hpp"
#include "coterie/plan/schedule/timeline.hpp"

namespace coterie::schedule {

/// Runs a task graph event by event. Each lane runs one task at a time and is never preempted;
/// while several lanes run, each is slowed by the contention of the others' resources, so a task's
/// speed changes whenever another starts or ends. Deterministic. Keeps its buffers between runs:
/// not thread-safe.
class Simulator {
 public:
  explicit Simulator(const cost::Contention& contention = {});

  /// Seconds until the last task ends; 0 for an empty graph. kBadInput if tasks wait for each other
  /// for ever (an order that contradicts the dependencies).
  double run(const TaskGraph& graph);
  /// Of the last run: when each task started and ended.
  [[nodiscard]] std::span<const double> starts_s() const { return starts_; }
  [[nodiscard]] std::span<const double> ends_s() const { return ends_; }
  /// Of the last run of `graph`: its tasks in the order in which each lane ran them.
  [[nodiscard]] std::array<std::vector<TaskId>, kNumLanes> lane_orders(
      const TaskGraph& graph) const;
  /// The last run of `graph` as a timeline; tasks that take no time are left out.
  [[nodiscard]] Timeline timeline(const TaskGraph& graph, Phase phase,
                                  std::int32_t layer = 0) const;

  [[nodiscard]] const cost::Contention& contention() const { return contention_; }

 private:
  struct LaneState {
    TaskId running = kNoTask;
    double left_s = 0;  ///< work left of the running task
    std::size_t next = 0;
    std::vector<TaskId> waiting;  ///< FIFO: all in order; priority: those that are ready
  };
  void prepare(const TaskGraph& graph);
  void make_ready(const TaskGraph& graph, TaskId id);
  bool start_tasks(const TaskGraph& graph, double now_s);
  void finish(const TaskGraph& graph, LaneState& lane, double now_s);
  [[nodiscard]] double slow_down(const TaskGraph& graph, std::size_t lane) const;

  cost::Contention contention_;
  bool is_free_;
  std::array<LaneState, kNumLanes> lanes_;
  std::vector<std::int32_t> missing_;   ///< dependencies that have not ended
  std::vector<std::uint32_t> offsets_;  ///< of `after_`
  std::vector<TaskId> after_;           ///< who waits for a task
  std::vector<double> starts_;
  std::vector<double> ends_;
};

}  // namespace coterie::schedule
