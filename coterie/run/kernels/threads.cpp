// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/threads.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::kernels {
namespace {

constexpr int kSpins =
    2000;  // some microseconds: shorter than a futex wake-up, then the core is free
thread_local const void* running_pool = nullptr;  // the pool whose part this thread is in

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until `value` differs from `old` and returns what it became: short spin, then sleep.
std::uint32_t wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) {
      return now;
    }
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

struct Threads::State {
  int size = 1;
  std::mutex turn;  // held by the caller whose loop runs
  std::vector<std::thread> workers;

  const std::function<void(std::int64_t)>* body = nullptr;
  std::int64_t num_parts = 0;
  std::vector<std::exception_ptr> errors;    // one a thread
  std::atomic<std::uint32_t> generation{0};  // grows by one for each loop
  std::atomic<std::uint32_t> pending{0};     // workers that have not finished this loop
  std::atomic<bool> stop{false};

  ~State() {
    stop.store(true, std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& worker : workers) {
      worker.join();
    }
  }

  void run_share(int thread) {
    const void* const outer = running_pool;
    running_pool = this;
    try {
      const std::int64_t begin = thread * num_parts / size;
      const std::int64_t end = (thread + 1) * num_parts / size;
      for (std::int64_t part = begin; part < end; ++part) {
        (*body)(part);
      }
    } catch (...) {
      errors[static_cast<std::size_t>(thread)] = std::current_exception();
    }
    running_pool = outer;
  }

  void work(int thread) {
    std::uint32_t seen = 0;
    while (true) {
      seen = wait_for_change(generation, seen);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      run_share(thread);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        pending.notify_one();
      }
    }
  }

  void run_all(std::int64_t parts, const std::function<void(std::int64_t)>& part_body) {
    const std::lock_guard lock(turn);
    body = &part_body;
    num_parts = parts;
    pending.store(static_cast<std::uint32_t>(size - 1), std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    run_share(0);
    for (std::uint32_t left = pending.load(std::memory_order_acquire); left != 0;) {
      left = wait_for_change(pending, left);
    }
    std::exception_ptr first;
    for (std::exception_ptr& error : errors) {
      if (error && !first) {
        first = error;
      }
      error = nullptr;
    }
    if (first) {
      std::rethrow_exception(first);
    }
  }
};

Threads::Threads(int num_threads) : state_(std::make_unique<State>()) {
  COTERIE_REQUIRE(num_threads >= 1 && num_threads <= kMost, "number of threads is ", num_threads,
                  "; expected 1 to ", kMost);
  state_->size = num_threads;
  state_->errors.resize(static_cast<std::size_t>(num_threads));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      state_->workers.emplace_back([state = state_.get(), thread] { state->work(thread); });
    } catch (const std::system_error& error) {  // those that run are stopped by State
      fail(ErrorCode::kUnsupported, "thread ", thread + 1, " of ", num_threads,
           " could not be started: ", error.what());
    }
  }
}

Threads::~Threads() = default;

int Threads::size() const noexcept {
  return state_->size;
}

void Threads::run(std::int64_t num_parts, const std::function<void(std::int64_t)>& body) {
  if (num_parts <= 0) {
    return;
  }
  if (state_->size == 1) {
    for (std::int64_t part = 0; part < num_parts; ++part) {
      body(part);
    }
    return;
  }
  COTERIE_CHECK(running_pool != state_.get(), "a part of a loop started a loop on its own pool of ",
                state_->size, " threads");
  state_->run_all(num_parts, body);
}

void Threads::run_ranges(std::int64_t count, std::int64_t grain,
                         const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) {
    return;
  }
  const std::int64_t most = count / std::max<std::int64_t>(grain, 1);
  const std::int64_t num_ranges = std::clamp<std::int64_t>(most, 1, state_->size);
  if (num_ranges == 1) {
    body(0, count);
    return;
  }
  run(num_ranges, [&](std::int64_t range) {
    body(range * count / num_ranges, (range + 1) * count / num_ranges);
  });
}

Threads& Threads::single() {
  static Threads pool(1);
  return pool;
}

}  // namespace coterie::kernels
