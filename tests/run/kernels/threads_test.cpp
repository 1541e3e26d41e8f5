// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/threads.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::kernels {
namespace {

TEST(Threads, RunsEachPartOnce) {
  for (const int size : {1, 2, 3, 5}) {
    Threads threads(size);
    EXPECT_EQ(threads.size(), size);
    for (const std::int64_t num_parts : {0, 1, 2, 7, 100}) {
      std::vector<int> runs(static_cast<std::size_t>(num_parts), 0);
      threads.run(num_parts, [&](std::int64_t part) { ++runs[static_cast<std::size_t>(part)]; });
      for (const int count : runs) {
        EXPECT_EQ(count, 1);
      }
    }
  }
}

TEST(Threads, BindsPartsToThreadsByNumber) {
  Threads threads(3);
  std::vector<std::thread::id> first(10), second(10);
  threads.run(
      10, [&](std::int64_t p) { first[static_cast<std::size_t>(p)] = std::this_thread::get_id(); });
  threads.run(10, [&](std::int64_t p) {
    second[static_cast<std::size_t>(p)] = std::this_thread::get_id();
  });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[9], first[0]);
}

TEST(Threads, RangesCoverAllAndKeepTheGrain) {
  Threads threads(3);
  for (const std::int64_t count : {0, 1, 5, 64, 1000}) {
    std::atomic<std::int64_t> covered{0};
    std::atomic<int> num_ranges{0};
    threads.run_ranges(count, 32, [&](std::int64_t begin, std::int64_t end) {
      covered += end - begin;
      ++num_ranges;
    });
    EXPECT_EQ(covered, count);
    EXPECT_EQ(num_ranges, count == 0 ? 0 : count < 64 ? 1 : count < 96 ? 2 : 3);
  }
}

TEST(Threads, RethrowsTheLowestThreadsError) {
  Threads threads(3);
  const auto failing = [](std::int64_t part) { throw std::runtime_error(std::to_string(part)); };
  for (int i = 0; i < 20; ++i) {
    try {
      threads.run(3, failing);
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "0");
    }
  }
  int runs = 0;
  threads.run(1, [&](std::int64_t) { ++runs; });
  EXPECT_EQ(runs, 1) << "usable after an error";
}

TEST(Threads, RefusesNestedUseOfOnePool) {
  Threads threads(2), other(2);
  try {
    threads.run(2, [&](std::int64_t) { threads.run(1, [](std::int64_t) {}); });
    FAIL() << "nested use was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("its own pool of 2 threads"), std::string::npos);
  }
  std::atomic<int> runs{0};
  threads.run(2, [&](std::int64_t) { other.run(2, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 4) << "another pool is no nested use";
}

TEST(Threads, RefusesSizesOutOfRange) {
  for (const int size : {0, -3, 1025, 100000}) {
    try {
      Threads threads(size);
      FAIL() << size << " threads were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      EXPECT_EQ(std::string(error.what()),
                "number of threads is " + std::to_string(size) + "; expected 1 to 1024");
    }
  }
}

#ifndef COTERIE_AUDITS  // sanitizers reserve more addresses than any limit would leave
/// A child with no address space left for stacks: an error that names the thread, no abort.
TEST(ThreadsDeathTest, SaysWhichThreadTheSystemRefused) {
  const auto in_a_small_space = [] {
    const rlimit limit{std::uint64_t{1} << 28U, std::uint64_t{1} << 28U};
    setrlimit(RLIMIT_AS, &limit);
    try {
      Threads threads(Threads::kMost);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(error.code() == ErrorCode::kUnsupported ? 0 : 1);
    }
    std::_Exit(2);
  };
  EXPECT_EXIT(in_a_small_space(), testing::ExitedWithCode(0),
              "thread [0-9]+ of 1024 could not be started: ");
}
#endif

TEST(Threads, CallersTakeTurns) {
  Threads threads(2);
  std::int64_t total = 0;  // unguarded: the turns alone keep it whole; ThreadSanitizer checks this
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        threads.run(2, [&](std::int64_t part) {
          if (part == 0) {
            ++total;
          }
        });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(total, 600);
}

TEST(Threads, WakesSleepingWorkers) {
  Threads threads(2);
  std::atomic<int> runs{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    threads.run(2, [&](std::int64_t) { ++runs; });
  }
  EXPECT_EQ(runs, 10);
}

}  // namespace
}  // namespace coterie::kernels
