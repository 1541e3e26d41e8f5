// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace coterie::comm {

/// Waits between polls without holding a core: yields for a moment, then sleeps for a share of the
/// time waited so far. So a wait ends at most an eighth later than it could, and a rank that waits
/// for long polls a thousand times a second, which costs about a hundredth of a core. Ranks may
/// therefore outnumber cores.
///
/// A transfer between ranks that are both here moves only while both poll, so it is worth yielding
/// for longer before the first sleep.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;
  /// How long to yield before the first sleep: waiting for a rank; waiting for its bytes.
  static constexpr Clock::duration kAbsent = std::chrono::microseconds(50);
  static constexpr Clock::duration kMoving = std::chrono::milliseconds(5);

  /// Something has happened.
  void reset(Clock::duration yield_for) {
    start_ = Clock::now();
    yield_for_ = yield_for;
  }

  void pause() const {
    const auto waited = Clock::now() - start_;
    if (waited < yield_for_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 8, kShortest, kLongest));
    }
  }

 private:
  static constexpr Clock::duration kShortest = std::chrono::microseconds(10);
  static constexpr Clock::duration kLongest = std::chrono::milliseconds(1);
  Clock::time_point start_ = Clock::now();
  Clock::duration yield_for_ = kAbsent;
};

}  // namespace coterie::comm
