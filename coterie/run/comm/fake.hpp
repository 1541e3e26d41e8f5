// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "coterie/run/comm/communicator.hpp"

namespace coterie::comm {

class FakeMeeting;

/// How long a rank waits for another one, unless told otherwise.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(5);

/// Ranks that are threads of one process: for tests, and to see what N ranks would do without a
/// launcher. Deterministic, and strict: it finds what a real engine would hang on. One failure ends
/// the group for good: every later call on any rank throws.
class FakeGroup {
 public:
  explicit FakeGroup(int num_ranks, std::chrono::milliseconds timeout = kDefaultTimeout);
  ~FakeGroup();
  FakeGroup(const FakeGroup&) = delete;
  FakeGroup& operator=(const FakeGroup&) = delete;

  /// The face of one rank; lives as long as the group. One thread uses it at a time.
  [[nodiscard]] Communicator& communicator(int rank);
  /// Rank `rank` makes no further calls: who waits for it fails at once instead of at the limit.
  void leave(int rank) noexcept;

 private:
  std::shared_ptr<FakeMeeting> meeting_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

/// Runs `function` once a rank, each in a thread of its own, and waits for all. If a rank throws,
/// the others end with 'aborted by rank r', and the exception of the first rank that failed is
/// thrown again here.
void run_ranks(int num_ranks, const std::function<void(Communicator&)>& function,
               std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace coterie::comm
