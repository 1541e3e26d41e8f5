// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/fake.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/collective.hpp"
#include "coterie/run/comm/fake_meeting.hpp"

namespace coterie::comm {

namespace {

/// The face of one rank.
class FakeRank final : public Communicator {
 public:
  FakeRank(std::shared_ptr<FakeMeeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return meeting_->size(); }
  [[nodiscard]] std::string name() const override { return "fake"; }

  void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes,
                  Purpose purpose) override {
    check_all_to_all(send, send_bytes, receive, receive_bytes, size());
    meeting_->meet(rank_, {.kind = CollectiveKind::kAllToAll,
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
    meeting_->meet(rank_, {.kind = CollectiveKind::kAllGather,
                           .send = send,
                           .send_bytes = {},
                           .receive = receive,
                           .receive_bytes = {}});
    count_to_all_others(traffic_, std::ssize(send), size(), purpose);
    ++traffic_.num_collectives;
  }

  void broadcast(std::span<std::byte> data, int root, Purpose purpose) override {
    check_root(root, size());
    meeting_->meet(rank_, {.kind = CollectiveKind::kBroadcast,
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
    meeting_->meet(rank_, FakePost{});
    ++traffic_.num_collectives;
  }

  void abort(const std::string& message) noexcept override {
    meeting_->world().abort(meeting_->member(rank_), message);
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color) override {
    check_color(color);
    std::vector<int> colors(static_cast<std::size_t>(size()));
    meeting_->meet(rank_, {.kind = CollectiveKind::kSplit,
                           .send = std::as_bytes(std::span(&color, 1)),
                           .send_bytes = {},
                           .receive = std::as_writable_bytes(std::span(colors)),
                           .receive_bytes = {}});
    count_to_all_others(traffic_, sizeof(color), size(), Purpose::kControl);
    ++traffic_.num_collectives;
    const std::vector<int> ranks = ranks_of_color(colors, rank_);
    const auto place = std::ranges::find(ranks, rank_) - ranks.begin();
    return std::make_unique<FakeRank>(meeting_->part(num_splits_++, ranks),
                                      static_cast<int>(place));
  }

  [[nodiscard]] const Traffic& traffic() const override { return traffic_; }
  void reset_traffic() override { traffic_ = {}; }

 private:
  std::shared_ptr<FakeMeeting> meeting_;
  int rank_;
  std::uint64_t num_splits_ = 0;
  Traffic traffic_;
};

}  // namespace

FakeGroup::FakeGroup(int num_ranks, std::chrono::milliseconds timeout) {
  COTERIE_CHECK(num_ranks >= 1, "a group of ", num_ranks, " ranks");
  std::vector<int> members(static_cast<std::size_t>(num_ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto world = std::make_shared<FakeWorld>(num_ranks, timeout);
  meeting_ = std::make_shared<FakeMeeting>(world, std::move(members));
  world->meetings.push_back(meeting_);
  for (int r = 0; r < num_ranks; ++r) {
    ranks_.push_back(std::make_unique<FakeRank>(meeting_, r));
  }
}

FakeGroup::~FakeGroup() = default;

Communicator& FakeGroup::communicator(int rank) {
  COTERIE_CHECK(rank >= 0 && rank < meeting_->size(), "rank ", rank, " of ", meeting_->size());
  return *ranks_[static_cast<std::size_t>(rank)];
}

void FakeGroup::leave(int rank) noexcept {
  meeting_->world().leave(rank);
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
