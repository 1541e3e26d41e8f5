// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/lanes.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::layer {
namespace {

using schedule::kNumLanes;
using schedule::Lane;

/// Each task once, and an order in which nobody waits for ever: lanes are played through.
void check_orders(std::span<const LaneTask> tasks, const LaneOrders& orders) {
  std::vector<char> ended(tasks.size(), 0);
  std::array<std::size_t, kNumLanes> next{};
  std::size_t num_ended = 0;
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
      for (; next[lane] < orders[lane].size(); ++next[lane], ++num_ended, moves = true) {
        const auto id = static_cast<std::size_t>(orders[lane][next[lane]]);
        COTERIE_CHECK(id < tasks.size() && ended[id] == 0, "a lane has task ", id,
                      ", which is not there or runs twice");
        const auto& after = tasks[id].after;
        if (!std::ranges::all_of(after,
                                 [&](auto a) { return ended[static_cast<std::size_t>(a)] != 0; })) {
          break;
        }
        ended[id] = 1;
      }
    }
  }
  COTERIE_CHECK(num_ended == tasks.size(), "the lanes end ", num_ended, " of ", tasks.size(),
                " tasks: the others are in no lane or wait for each other");
}

}  // namespace

struct Lanes::State {
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex.
  std::span<const LaneTask> tasks;
  const LaneOrders* orders = nullptr;
  const LaneNotes* notes = nullptr;
  std::vector<char> ended;
  std::exception_ptr failure;
  std::uint64_t run = 0;  ///< number of the run
  int num_working = 0;    ///< threads that have not ended the run
  bool is_stopping = false;
  std::vector<std::thread> threads;

  /// Carries out one lane's tasks of the run.
  void work(std::size_t lane) {
    for (const std::int32_t id : (*orders)[lane]) {
      const auto number = static_cast<std::size_t>(id);
      const LaneTask& task = tasks[number];
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] {
          return failure != nullptr || std::ranges::all_of(task.after, [&](std::int32_t before) {
                   return ended[static_cast<std::size_t>(before)] != 0;
                 });
        });
        if (failure != nullptr) {
          return;
        }
      }
      try {
        carry_out(task, lane);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) {
          failure = std::current_exception();
        }
        changed.notify_all();
        return;
      }
      const std::lock_guard lock(mutex);
      ended[number] = 1;
      changed.notify_all();
    }
  }

  void carry_out(const LaneTask& task, std::size_t lane) const {
    if (notes->log != nullptr) {  // each lane has a text of its own
      std::string& text = (*notes->log)[lane];
      text += (text.empty() ? "" : " ") + std::string(short_name_of(task.kind)) +
              std::to_string(task.chunk + 1);
    }
    if (notes->recorder == nullptr) {
      task.run();
      return;
    }
    notes->recorder->record(
        {task.kind, static_cast<Lane>(lane), notes->phase, task.chunk, notes->layer}, task.run);
  }

  void serve(std::size_t lane) {
    for (std::uint64_t seen = 0;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return is_stopping || run != seen; });
        if (is_stopping) {
          return;
        }
        seen = run;
      }
      work(lane);
      const std::lock_guard lock(mutex);
      --num_working;
      changed.notify_all();
    }
  }
};

Lanes::Lanes() : state_(std::make_unique<State>()) {
  for (const Lane lane : {Lane::kInter, Lane::kIntra}) {
    state_->threads.emplace_back(
        [state = state_.get(), lane] { state->serve(static_cast<std::size_t>(lane)); });
  }
}

Lanes::~Lanes() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_stopping = true;
    state_->changed.notify_all();
  }
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

void Lanes::run(std::span<const LaneTask> tasks, const LaneOrders& orders, const LaneNotes& notes) {
  check_orders(tasks, orders);
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.tasks = tasks;
    state.orders = &orders;
    state.notes = &notes;
    state.ended.assign(tasks.size(), 0);
    state.failure = nullptr;
    state.num_working = static_cast<int>(state.threads.size());
    ++state.run;
    state.changed.notify_all();
  }
  state.work(static_cast<std::size_t>(Lane::kCompute));
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.num_working == 0; });
  if (state.failure != nullptr) {
    std::rethrow_exception(std::exchange(state.failure, nullptr));
  }
}

}  // namespace coterie::layer
