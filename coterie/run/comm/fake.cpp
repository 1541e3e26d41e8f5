// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/fake.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/collective.hpp"

namespace coterie::comm {

namespace {

/// What one rank brings to a collective. Spans point into the rank's own buffers, which stay alive
/// because the rank waits.
struct Post {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::span<const std::byte> send;
  std::span<const std::int64_t> send_bytes;
  std::span<std::byte> receive;
  std::span<const std::int64_t> receive_bytes;
  int root = 0;
};

}  // namespace

/// The meeting point. The last rank to arrive checks all posts and moves all bytes, in rank order,
/// while the others wait.
struct FakeGroup::State {
  State(int num_ranks, std::chrono::milliseconds limit)
      : size(num_ranks),
        timeout(limit),
        posts(static_cast<std::size_t>(num_ranks)),
        has_left(static_cast<std::size_t>(num_ranks), false) {}

  const int size;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<Post>> posts;  ///< [size] who has arrived at the current collective
  std::vector<bool> has_left;              ///< [size]
  int num_arrived = 0;
  std::uint64_t sequence = 0;  ///< number of collectives that are complete
  std::optional<Error> failure;

  void meet(int rank, const Post& post);
  void fail_group(const Error& error);
  void check_nobody_left();
  [[nodiscard]] std::string list_missing() const;
  void check_posts() const;
  void move_bytes() const;
};

void FakeGroup::State::fail_group(const Error& error) {
  if (!failure) {
    failure = error;
  }
  changed.notify_all();
}

std::string FakeGroup::State::list_missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size; ++r) {
    if (!posts[static_cast<std::size_t>(r)]) {
      missing.push_back(r);
    }
  }
  return list_ranks(std::move(missing));
}

void FakeGroup::State::check_nobody_left() {
  for (int r = 0; r < size; ++r) {
    if (has_left[static_cast<std::size_t>(r)] && num_arrived > 0) {
      const auto waiting = std::ranges::find_if(posts, [](const auto& p) { return p.has_value(); });
      fail_group(Error(ErrorCode::kPeer, join_message(describe((*waiting)->kind, sequence),
                                                      ": rank ", r, " has left the group")));
      return;
    }
  }
}

void FakeGroup::State::check_posts() const {
  const CollectiveKind kind = posts[0]->kind;
  for (int r = 1; r < size; ++r) {
    const Post& other = *posts[static_cast<std::size_t>(r)];
    COTERIE_CHECK(other.kind == kind, "collective ", sequence, ": rank 0 calls ", name_of(kind),
                  ", rank ", r, " calls ", name_of(other.kind));
    if (kind == CollectiveKind::kBroadcast) {
      COTERIE_CHECK(other.root == posts[0]->root, describe(kind, sequence), ": rank 0 names root ",
                    posts[0]->root, ", rank ", r, " names ", other.root);
    }
    if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kAllGather) {
      const auto bytes = [&](const Post& p) {
        return kind == CollectiveKind::kBroadcast ? p.receive.size() : p.send.size();
      };
      COTERIE_CHECK(bytes(other) == bytes(*posts[0]), describe(kind, sequence), ": rank 0 has ",
                    bytes(*posts[0]), " bytes, rank ", r, " has ", bytes(other));
    }
  }
  for (int from = 0; kind == CollectiveKind::kAllToAll && from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const auto f = static_cast<std::size_t>(from);
      const auto t = static_cast<std::size_t>(to);
      COTERIE_CHECK(posts[f]->send_bytes[t] == posts[t]->receive_bytes[f], describe(kind, sequence),
                    ": rank ", from, " sends ", posts[f]->send_bytes[t], " bytes to rank ", to,
                    ", which expects ", posts[t]->receive_bytes[f]);
    }
  }
}

void FakeGroup::State::move_bytes() const {
  for (int to = 0; to < size; ++to) {
    const Post& receiver = *posts[static_cast<std::size_t>(to)];
    std::byte* out = receiver.receive.data();
    if (receiver.kind == CollectiveKind::kBroadcast) {
      const Post& root = *posts[static_cast<std::size_t>(receiver.root)];
      if (to != receiver.root) {
        std::ranges::copy(root.receive, out);
      }
      continue;
    }
    for (int from = 0; from < size && receiver.kind != CollectiveKind::kBarrier; ++from) {
      const Post& sender = *posts[static_cast<std::size_t>(from)];
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

void FakeGroup::State::meet(int rank, const Post& post) {
  std::unique_lock lock(mutex);
  if (failure) {
    throw *failure;
  }
  posts[static_cast<std::size_t>(rank)] = post;
  ++num_arrived;
  const std::uint64_t mine = sequence;
  if (num_arrived == size) {
    try {
      check_posts();
      move_bytes();
    } catch (const Error& error) {
      fail_group(error);
      throw;
    }
    std::ranges::fill(posts, std::nullopt);
    num_arrived = 0;
    ++sequence;
    changed.notify_all();
    return;
  }
  check_nobody_left();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (sequence == mine && !failure) {
    if (changed.wait_until(lock, deadline) == std::cv_status::timeout && sequence == mine) {
      fail_group(
          Error(ErrorCode::kPeer, join_message(describe(post.kind, mine), ": ", list_missing(),
                                               " did not arrive within ", timeout.count(), " ms")));
    }
  }
  if (sequence == mine) {
    throw *failure;
  }
}

/// The face of one rank.
class FakeGroup::Rank final : public Communicator {
 public:
  Rank(State& state, int rank) : state_(state), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return state_.size; }
  [[nodiscard]] std::string name() const override { return "fake"; }

  void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes,
                  Purpose purpose) override {
    check_all_to_all(send, send_bytes, receive, receive_bytes, size());
    state_.meet(rank_, {.kind = CollectiveKind::kAllToAll,
                        .send = send,
                        .send_bytes = send_bytes,
                        .receive = receive,
                        .receive_bytes = receive_bytes});
    count_all_to_all(traffic_, send_bytes, rank_, purpose);
    ++traffic_.num_collectives;
  }

  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                  Purpose purpose) override {
    check_all_gather(send, receive, size());
    state_.meet(rank_, {.kind = CollectiveKind::kAllGather,
                        .send = send,
                        .send_bytes = {},
                        .receive = receive,
                        .receive_bytes = {}});
    count_to_all_others(traffic_, std::ssize(send), size(), purpose);
    ++traffic_.num_collectives;
  }

  void broadcast(std::span<std::byte> data, int root, Purpose purpose) override {
    check_root(root, size());
    state_.meet(rank_, {.kind = CollectiveKind::kBroadcast,
                        .send = {},
                        .send_bytes = {},
                        .receive = data,
                        .receive_bytes = {},
                        .root = root});
    if (rank_ == root) {
      count_to_all_others(traffic_, std::ssize(data), size(), purpose);
    }
    ++traffic_.num_collectives;
  }

  void barrier() override {
    state_.meet(rank_, Post{});
    ++traffic_.num_collectives;
  }

  void abort(const std::string& message) noexcept override {
    const std::scoped_lock lock(state_.mutex);
    state_.fail_group(
        Error(ErrorCode::kPeer, join_message("aborted by rank ", rank_, ": ", message)));
  }

  [[nodiscard]] const Traffic& traffic() const override { return traffic_; }
  void reset_traffic() override { traffic_ = {}; }

 private:
  State& state_;
  int rank_;
  Traffic traffic_;
};

FakeGroup::FakeGroup(int num_ranks, std::chrono::milliseconds timeout) {
  COTERIE_CHECK(num_ranks >= 1, "a group of ", num_ranks, " ranks");
  state_ = std::make_unique<State>(num_ranks, timeout);
  for (int r = 0; r < num_ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>(*state_, r));
  }
}

FakeGroup::~FakeGroup() = default;

Communicator& FakeGroup::communicator(int rank) {
  COTERIE_CHECK(rank >= 0 && rank < state_->size, "rank ", rank, " of ", state_->size);
  return *ranks_[static_cast<std::size_t>(rank)];
}

void FakeGroup::leave(int rank) noexcept {
  const std::scoped_lock lock(state_->mutex);
  state_->has_left[static_cast<std::size_t>(rank)] = true;
  state_->check_nobody_left();
}

void run_ranks(int num_ranks, const std::function<void(Communicator&)>& function,
               std::chrono::milliseconds timeout) {
  FakeGroup group(num_ranks, timeout);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep_first = [&] {
    const std::scoped_lock lock(mutex);
    if (!first) {
      first = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r) {
    threads.emplace_back([&, r] {
      Communicator& communicator = group.communicator(r);
      try {
        function(communicator);
        group.leave(r);
      } catch (const std::exception& error) {
        keep_first();
        communicator.abort(error.what());
      } catch (...) {
        keep_first();
        communicator.abort("an exception of unknown type");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace coterie::comm
