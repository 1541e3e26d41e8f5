// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/collective.hpp"

namespace coterie::comm {

class FakeMeeting;

/// What a FakeGroup and all groups that were cut from it share: one lock, one failure.
struct FakeWorld {
  FakeWorld(int num_ranks, std::chrono::milliseconds limit)
      : timeout(limit), has_left(static_cast<std::size_t>(num_ranks), false) {}

  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;
  std::vector<bool> has_left;                        ///< [ranks]
  std::vector<std::weak_ptr<FakeMeeting>> meetings;  ///< all groups

  /// The first failure stays. Call it with the lock held.
  void fail(const Error& error);
  void abort(int rank, const std::string& message) noexcept;
  void leave(int rank) noexcept;
};

/// What one rank brings to a collective. Spans point into the rank's own buffers, which stay alive
/// because the rank waits.
struct FakePost {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::span<const std::byte> send;
  std::span<const std::int64_t> send_bytes;
  std::span<std::byte> receive;
  std::span<const std::int64_t> receive_bytes;
  int root = 0;
};

/// The meeting point of one group. The last rank to arrive checks all posts and moves all bytes, in
/// rank order, while the others wait.
class FakeMeeting {
 public:
  /// `members` [ranks of this group]: their numbers in the world, for messages.
  FakeMeeting(std::shared_ptr<FakeWorld> world, std::vector<int> members)
      : world_(std::move(world)), members_(std::move(members)), posts_(members_.size()) {}

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] FakeWorld& world() const { return *world_; }

  void meet(int rank, const FakePost& post);
  /// The group of the ranks `ranks` of this one, out of its split number `split`: made by the first
  /// of them that asks.
  std::shared_ptr<FakeMeeting> part(std::uint64_t split, const std::vector<int>& ranks);
  /// Fails the world if somebody waits for a rank that has left. Call it with the lock held.
  void check_nobody_left();

 private:
  [[nodiscard]] std::string list_missing() const;
  void check_posts() const;
  void check_equal_sizes(CollectiveKind kind, int rank) const;
  void move_bytes() const;

  std::shared_ptr<FakeWorld> world_;
  std::vector<int> members_;
  std::vector<std::optional<FakePost>>
      posts_;  ///< [size] who has arrived at the current collective
  int num_arrived_ = 0;
  std::uint64_t sequence_ = 0;  ///< number of collectives that are complete
  /// Parts that some rank has asked for, by split and first rank.
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<FakeMeeting>> parts_;
};

}  // namespace coterie::comm
