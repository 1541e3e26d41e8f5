// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/profiling/record_timeline.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace coterie::profiling {

Clock steady_clock() {
  return [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
}

TimelineRecorder::TimelineRecorder(std::string name, std::int32_t device, Clock clock)
    : clock_(std::move(clock)), zero_s_(clock_()), device_(device) {
  timeline_.name = std::move(name);
}

void TimelineRecorder::add(const schedule::Span& span) {
  const std::lock_guard lock(mutex_);
  timeline_.spans.push_back(span);
}

void TimelineRecorder::finish(schedule::Span& span) {
  span.end_s = now_s();
  span.device = device_;
  add(span);
}

schedule::Timeline TimelineRecorder::take() {
  const std::lock_guard lock(mutex_);
  schedule::Timeline taken;
  taken.name = timeline_.name;
  taken.spans.swap(timeline_.spans);
  std::ranges::stable_sort(taken.spans, {}, &schedule::Span::start_s);
  return taken;
}

}  // namespace coterie::profiling
