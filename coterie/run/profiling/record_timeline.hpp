// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/profiling/clock.hpp"

namespace coterie::profiling {

/// Writes down what a device does, in the form that the simulator writes too. Thread-safe: each
/// lane may be a thread of its own.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(std::string name, std::int32_t device = 0,
                            Clock clock = steady_clock());

  /// Runs `task` and keeps when it started and ended, also if it throws. `span` says what it is;
  /// its times and device are filled in.
  template <typename Task>
  void record(schedule::Span span, Task&& task) {
    const Guard guard(*this, span);
    task();
  }
  /// A span that was timed elsewhere (events of a GPU stream), in seconds from the recorder's zero.
  void add(const schedule::Span& span);
  /// Seconds since the recorder was made.
  [[nodiscard]] double now_s() const { return clock_() - zero_s_; }
  /// What was recorded since the last take(), by start; the recorder is empty afterwards.
  schedule::Timeline take();

 private:
  class Guard {
   public:
    Guard(TimelineRecorder& recorder, schedule::Span& span) : recorder_(recorder), span_(span) {
      span_.start_s = recorder_.now_s();
    }
    ~Guard() { recorder_.finish(span_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    TimelineRecorder& recorder_;
    schedule::Span& span_;
  };
  void finish(schedule::Span& span);

  Clock clock_;
  double zero_s_;
  std::int32_t device_;
  std::mutex mutex_;
  schedule::Timeline timeline_;  // guarded by mutex_
};

}  // namespace coterie::profiling
