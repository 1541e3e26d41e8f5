// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/profiling/profiling.hpp"

namespace coterie::layer {

/// One step that a lane carries out.
struct LaneTask {
  schedule::TaskKind kind = schedule::TaskKind::kExperts;
  std::int32_t chunk = 0;           ///< of gradients: the piece
  std::vector<std::int32_t> after;  ///< tasks that must have ended, by their number
  std::function<void()> run;
};

/// Which task runs where, lane by lane, in this order.
using LaneOrders = std::array<std::vector<std::int32_t>, schedule::kNumLanes>;

/// What a run is written down with; all may be absent.
struct LaneNotes {
  profiling::TimelineRecorder* recorder = nullptr;
  schedule::Phase phase = schedule::Phase::kForward;
  std::int32_t layer = 0;
  /// [lanes] what each lane began, in order, "D1 D2 C1 ...", appended: the same on every rank.
  std::array<std::string, schedule::kNumLanes>* log = nullptr;
};

/// Three queues of a device that run at the same time, each one task at a time in a fixed order.
/// The calling thread is the compute lane; the two links have a thread each, which sleeps between
/// runs. Every lane starts its tasks in the given order and waits where one is not ready, so the
/// order of collectives depends on the plan alone. Not thread-safe.
class Lanes {
 public:
  Lanes();
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Returns when all tasks have ended. If one throws, no lane begins another task, and the first
  /// exception is thrown again here; what other lanes are in then ends by itself, at the latest at
  /// the communicator's limit. kInternal if an order leaves tasks out, repeats one, or waits for
  /// ever.
  void run(std::span<const LaneTask> tasks, const LaneOrders& orders, const LaneNotes& notes = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coterie::layer
