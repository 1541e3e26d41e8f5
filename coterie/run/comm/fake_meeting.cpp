// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/fake_meeting.hpp"

#include <algorithm>

namespace coterie::comm {

void FakeWorld::fail(const Error& error) {
  if (!failure) {
    failure = error;
  }
  changed.notify_all();
}

void FakeWorld::abort(int rank, const std::string& message) noexcept {
  const std::scoped_lock lock(mutex);
  fail(Error(ErrorCode::kPeer, join_message("aborted by rank ", rank, ": ", message)));
}

void FakeWorld::leave(int rank) noexcept {
  const std::scoped_lock lock(mutex);
  has_left[static_cast<std::size_t>(rank)] = true;
  for (const auto& weak : meetings) {
    if (const auto meeting = weak.lock()) {
      meeting->check_nobody_left();
    }
  }
}

std::string FakeMeeting::list_missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (!posts_[static_cast<std::size_t>(r)]) {
      missing.push_back(member(r));
    }
  }
  return list_ranks(std::move(missing));
}

void FakeMeeting::check_nobody_left() {
  for (int r = 0; r < size(); ++r) {
    if (world_->has_left[static_cast<std::size_t>(member(r))] && num_arrived_ > 0) {
      const auto waiting =
          std::ranges::find_if(posts_, [](const auto& p) { return p.has_value(); });
      world_->fail(
          Error(ErrorCode::kPeer, join_message(describe((*waiting)->kind, sequence_), ": rank ",
                                               member(r), " has left the group")));
      return;
    }
  }
}

void FakeMeeting::check_equal_sizes(CollectiveKind kind, int rank) const {
  const auto bytes = [&](int r) {
    const FakePost& post = *posts_[static_cast<std::size_t>(r)];
    return kind == CollectiveKind::kBroadcast ? post.receive.size() : post.send.size();
  };
  COTERIE_CHECK(bytes(rank) == bytes(0), describe(kind, sequence_), ": rank ", member(0), " has ",
                bytes(0), " bytes, rank ", member(rank), " has ", bytes(rank));
}

void FakeMeeting::check_posts() const {
  const CollectiveKind kind = posts_[0]->kind;
  for (int r = 1; r < size(); ++r) {
    const FakePost& other = *posts_[static_cast<std::size_t>(r)];
    COTERIE_CHECK(other.kind == kind, "collective ", sequence_, ": rank ", member(0), " calls ",
                  name_of(kind), ", rank ", member(r), " calls ", name_of(other.kind));
    if (kind == CollectiveKind::kBroadcast) {
      COTERIE_CHECK(other.root == posts_[0]->root, describe(kind, sequence_), ": rank ", member(0),
                    " names root ", posts_[0]->root, ", rank ", member(r), " names ", other.root);
    }
    if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kAllGather) {
      check_equal_sizes(kind, r);
    }
  }
  for (int from = 0; kind == CollectiveKind::kAllToAll && from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const auto f = static_cast<std::size_t>(from);
      const auto t = static_cast<std::size_t>(to);
      COTERIE_CHECK(posts_[f]->send_bytes[t] == posts_[t]->receive_bytes[f],
                    describe(kind, sequence_), ": rank ", member(from), " sends ",
                    posts_[f]->send_bytes[t], " bytes to rank ", member(to), ", which expects ",
                    posts_[t]->receive_bytes[f]);
    }
  }
}

void FakeMeeting::move_bytes() const {
  for (int to = 0; to < size(); ++to) {
    const FakePost& receiver = *posts_[static_cast<std::size_t>(to)];
    std::byte* out = receiver.receive.data();
    if (receiver.kind == CollectiveKind::kBroadcast) {
      const FakePost& root = *posts_[static_cast<std::size_t>(receiver.root)];
      if (to != receiver.root) {
        std::ranges::copy(root.receive, out);
      }
      continue;
    }
    for (int from = 0; from < size() && receiver.kind != CollectiveKind::kBarrier; ++from) {
      const FakePost& sender = *posts_[static_cast<std::size_t>(from)];
      std::span<const std::byte> block = sender.send;
      if (receiver.kind == CollectiveKind::kAllToAll) {
        const auto offset = offsets_of(sender.send_bytes)[static_cast<std::size_t>(to)];
        block = block.subspan(
            static_cast<std::size_t>(offset),
            static_cast<std::size_t>(sender.send_bytes[static_cast<std::size_t>(to)]));
      }
      out = std::ranges::copy(block, out).out;
    }
  }
}

void FakeMeeting::meet(int rank, const FakePost& post) {
  std::unique_lock lock(world_->mutex);
  if (world_->failure) {
    throw Error(*world_->failure);
  }
  posts_[static_cast<std::size_t>(rank)] = post;
  ++num_arrived_;
  const std::uint64_t mine = sequence_;
  if (num_arrived_ == size()) {
    try {
      check_posts();
      move_bytes();
    } catch (const Error& error) {
      world_->fail(error);
      throw;
    }
    std::ranges::fill(posts_, std::nullopt);
    num_arrived_ = 0;
    ++sequence_;
    world_->changed.notify_all();
    return;
  }
  check_nobody_left();
  const auto deadline = std::chrono::steady_clock::now() + world_->timeout;
  while (sequence_ == mine && !world_->failure) {
    if (world_->changed.wait_until(lock, deadline) == std::cv_status::timeout &&
        sequence_ == mine && !world_->failure) {
      world_->fail(Error(ErrorCode::kPeer,
                         join_message(describe(post.kind, mine), ": ", list_missing(),
                                      " did not arrive within ", world_->timeout.count(), " ms")));
    }
  }
  if (sequence_ == mine) {
    throw Error(*world_->failure);
  }
}

std::shared_ptr<FakeMeeting> FakeMeeting::part(std::uint64_t split, const std::vector<int>& ranks) {
  const std::scoped_lock lock(world_->mutex);
  std::shared_ptr<FakeMeeting>& part = parts_[{split, ranks.front()}];
  if (!part) {
    std::vector<int> members;
    for (const int rank : ranks) {
      members.push_back(member(rank));
    }
    part = std::make_shared<FakeMeeting>(world_, std::move(members));
    world_->meetings.push_back(part);
  }
  return part;
}

}  // namespace coterie::comm
