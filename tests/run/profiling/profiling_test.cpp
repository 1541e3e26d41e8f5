// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/profiling/profiling.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::profiling {
namespace {

using schedule::Lane;
using schedule::Phase;
using schedule::TaskKind;

/// A clock that a test moves.
struct HandClock {
  double now_s = 100;
  Clock clock() {
    return [this] { return now_s; };
  }
};

TEST(TimelineRecorder, RecordsWhatRanAndWhen) {
  HandClock hand;
  TimelineRecorder recorder("rank 3", 3, hand.clock());
  hand.now_s = 102;
  recorder.record({TaskKind::kDispatch, Lane::kInter, Phase::kBackward, 1, 4},
                  [&] { hand.now_s = 105; });
  EXPECT_THROW(recorder.record({TaskKind::kExperts, Lane::kCompute},
                               [&] {
                                 hand.now_s = 106;
                                 throw std::runtime_error("no memory");
                               }),
               std::runtime_error);
  const schedule::Timeline timeline = recorder.take();
  ASSERT_EQ(timeline.spans.size(), 2U);
  EXPECT_EQ(timeline.name, "rank 3");
  EXPECT_EQ(timeline.spans[0],
            (schedule::Span{TaskKind::kDispatch, Lane::kInter, Phase::kBackward, 1, 4, 3, 2, 5}));
  EXPECT_EQ(timeline.spans[1].end_s, 6);
  EXPECT_TRUE(recorder.take().spans.empty());
}

TEST(TimelineRecorder, TakesLanesOfSeveralThreads) {
  TimelineRecorder recorder("threads");
  std::vector<std::thread> threads;
  for (int lane = 0; lane < 3; ++lane) {
    threads.emplace_back([&recorder, lane] {
      for (std::int32_t chunk = 0; chunk < 200; ++chunk) {
        recorder.record({TaskKind::kExperts, static_cast<Lane>(lane), Phase::kForward, chunk},
                        [] {});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const schedule::Timeline timeline = recorder.take();
  EXPECT_EQ(timeline.spans.size(), 600U);
  for (std::size_t i = 1; i < timeline.spans.size(); ++i) {
    EXPECT_LE(timeline.spans[i - 1].start_s, timeline.spans[i].start_s);
  }
}

TEST(MeasureOperation, TakesTheMedianOfTheSlowestRankEverywhere) {
  std::mutex mutex;
  std::vector<std::vector<cost::Sample>> seen;
  comm::run_ranks(3, [&](comm::Communicator& group) {
    HandClock hand;
    int runs = 0;
    const std::vector<double> sizes = {10, 20};
    const auto run = [&](double size) {
      ++runs;
      // Rank 2 is the slowest; its first run of each size and one hiccup are much slower.
      hand.now_s += size * (1 + group.rank()) + (runs % 4 == 1 || runs == 3 ? 1000 : 0);
    };
    const auto samples = measure_operation(group, sizes, run, {1, 3}, hand.clock());
    const std::lock_guard lock(mutex);
    seen.push_back(samples);
  });
  ASSERT_EQ(seen.size(), 3U);
  for (const auto& samples : seen) {
    EXPECT_EQ(samples, (std::vector<cost::Sample>{{10, 30}, {20, 60}}));
  }
}

TEST(MeasureLinks, FitsWhatTheClockSays) {
  comm::run_ranks(2, [&](comm::Communicator& group) {
    // The clock runs on by the bytes that the group has carried: 1 ms and 1 us a byte.
    double ticks = 0;
    const Clock clock = [&] {
      return ticks++ * 1e-3 +
             1e-6 * static_cast<double>(group.traffic().sent_for(comm::Purpose::kDispatch));
    };
    const std::vector<double> sizes = {1000, 2000, 4000, 8000};
    const auto exchange = measure_exchange(group, sizes, {1, 3}, clock);
    const cost::CostModel model = cost::fit_cost_model(exchange, "exchange");
    EXPECT_NEAR(model.alpha_s(), 1e-3, 1e-9);
    EXPECT_NEAR(model.beta_s(), 0.5e-6, 1e-12);  // half of the bytes stay
    const auto gather = measure_all_gather(group, sizes, {1, 3}, clock);
    EXPECT_GT(gather.back().time_s, gather.front().time_s);
  });
}

TEST(MeasureOperation, RefusesWhatIsNoSize) {
  comm::SingleCommunicator single;
  const std::vector<double> bad = {0};
  EXPECT_THROW(measure_exchange(single, bad), Error);
  const std::vector<double> good = {8};
  EXPECT_THROW(measure_exchange(single, good, {0, 0}), Error);
  EXPECT_EQ(measure_exchange(single, good, {0, 1}).size(), 1U);
}

}  // namespace
}  // namespace coterie::profiling
