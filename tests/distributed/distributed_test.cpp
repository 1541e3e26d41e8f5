// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

struct Ended {
  RanksEnd end;
  std::string errors;
};

Ended run_command(std::vector<std::string> command, int num_processes) {
  Ended ended;
  StartOptions options;
  options.num_processes = num_processes;
  options.command = std::move(command);
  options.on_error_output = [&](std::string_view text) { ended.errors += text; };
  ended.end = start_ranks(options);
  return ended;
}

Ended run_scenario(const std::string& scenario, int num_processes) {
  return run_command({COTERIE_RANK_PROGRAM, scenario}, num_processes);
}

void expect_success(const Ended& ended) {
  EXPECT_EQ(ended.end.exit_code, 0) << ended.errors << ended.end.launcher_words;
  EXPECT_FALSE(ended.end.failure.has_value());
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Distributed, CollectivesEqualTheFakeOn2Ranks) {
  expect_success(run_scenario("collectives", 2));
}

TEST(Distributed, CollectivesEqualTheFakeOn4Ranks) {
  expect_success(run_scenario("collectives", 4));
}

TEST(Distributed, CollectivesEqualTheFakeOn8RanksHoweverFewTheCores) {
  expect_success(run_scenario("collectives", 8));
}

TEST(Distributed, BackendKeepsTheCallsOfC10d) {
  expect_success(run_command({COTERIE_BACKEND_PROGRAM}, 2));
  expect_success(run_command({COTERIE_BACKEND_PROGRAM}, 3));
}

TEST(Distributed, LateRankIsWaitedFor) {
  expect_success(run_scenario("late", 2));
}

TEST(Distributed, RankThatIsThroughEarlyStaysUntilTheOthersHaveItsData) {
  expect_success(run_scenario("early", 4));
}

TEST(Distributed, MismatchedSizesAreRefusedAndThePairIsNamed) {
  const Ended ended = run_scenario("mismatch", 4);
  EXPECT_EQ(ended.end.exit_code, exit_code_of(ErrorCode::kInternal)) << ended.errors;
  ASSERT_TRUE(ended.end.failure.has_value());
  EXPECT_TRUE(
      contains(ended.end.failure->message, "rank 1 sends 12 bytes to rank 0, which expects 8"))
      << ended.end.failure->message;
}

TEST(Distributed, DifferentCallsAreRefused) {
  const Ended ended = run_scenario("different_calls", 2);
  EXPECT_EQ(ended.end.exit_code, exit_code_of(ErrorCode::kInternal)) << ended.errors;
  ASSERT_TRUE(ended.end.failure.has_value());
  EXPECT_TRUE(contains(ended.end.failure->message, "barrier (collective 0)"));
  EXPECT_TRUE(contains(ended.end.failure->message, "all_gather (collective 0)"));
}

TEST(Distributed, RankThatThrowsIsHeardAndItsExitCodePassedOn) {
  const Ended ended = run_scenario("throws", 4);
  EXPECT_EQ(ended.end.exit_code, exit_code_of(ErrorCode::kInfeasible)) << ended.errors;
  ASSERT_TRUE(ended.end.failure.has_value());
  EXPECT_EQ(ended.end.failure->rank, 1);
  EXPECT_EQ(ended.end.failure->message, "no room on device 1");
  // Where others came to speak, they came later and name the rank.
  EXPECT_EQ(ended.errors.find("rank 1: no room on device 1"), 0U) << ended.errors;
}

TEST(Distributed, PartsOfAGroupEqualTheFakes) {
  expect_success(run_scenario("parts", 4));
  expect_success(run_scenario("parts", 5));
}

TEST(Distributed, FailureInAPartEndsAllPartsAndIsPassedOn) {
  const Ended ended = run_scenario("part_throws", 4);
  EXPECT_EQ(ended.end.exit_code, exit_code_of(ErrorCode::kInfeasible)) << ended.errors;
  ASSERT_TRUE(ended.end.failure.has_value());
  EXPECT_EQ(ended.end.failure->rank, 1);
  EXPECT_TRUE(contains(ended.errors, "aborted by rank 1: no room on device 1")) << ended.errors;
}

TEST(Distributed, KilledRankEndsTheOthersAndIsNamed) {
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = run_scenario("killed", 4);
  EXPECT_EQ(ended.end.exit_code, 128 + 9) << ended.errors;
  EXPECT_FALSE(ended.end.failure.has_value());
  EXPECT_TRUE(contains(ended.end.launcher_words, "rank 1")) << ended.end.launcher_words;
  // The ranks' own limit is a minute: they did not end by that.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
}

TEST(Distributed, RankThatHangsIsNamedAtTheLimit) {
  const Ended ended = run_scenario("hangs", 3);
  EXPECT_EQ(ended.end.exit_code, exit_code_of(ErrorCode::kPeer)) << ended.errors;
  ASSERT_TRUE(ended.end.failure.has_value());
  EXPECT_TRUE(contains(ended.end.failure->message,
                       "barrier (collective 1): rank 1 did not arrive within 1000 ms"))
      << ended.end.failure->message;
}

TEST(Distributed, TwoLaunchesAtOnceDoNotDisturbEachOther) {
  Ended other;
  std::thread thread([&] { other = run_scenario("collectives", 2); });
  const Ended mine = run_scenario("collectives", 2);
  thread.join();
  expect_success(mine);
  expect_success(other);
}

TEST(Distributed, OuterLauncherOfOneRankDoesNotLeakIntoTheRanks) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  const Ended ended = run_scenario("nothing", 2);
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  expect_success(ended);
}

TEST(Distributed, MissingProgramIsAnError) {
  const Ended ended = run_command({"/nonexistent/program"}, 2);
  EXPECT_NE(ended.end.exit_code, 0);
  EXPECT_TRUE(contains(ended.end.launcher_words, "/nonexistent/program"))
      << ended.end.launcher_words;
}

}  // namespace
}  // namespace coterie::comm
