// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

void expect_success(int num_processes, const std::string& num_shards) {
  std::string errors;
  StartOptions options;
  options.num_processes = num_processes;
  options.command = {COTERIE_MOE_LAYER_PROGRAM, num_shards};
  options.on_error_output = [&](std::string_view text) { errors += text; };
  const RanksEnd end = start_ranks(options);
  EXPECT_EQ(end.exit_code, 0) << errors << end.launcher_words
                              << (end.failure ? end.failure->message : "");
}

TEST(MoELayerRanks, TwoProcessesHaveTheBitsOfTwoThreads) {
  expect_success(2, "1");
}

TEST(MoELayerRanks, FourProcessesHaveTheBitsOfFourThreads) {
  expect_success(4, "1");
}

TEST(MoELayerRanks, ShardsOverProcesses) {
  expect_success(2, "2");
  expect_success(4, "2");
}

}  // namespace
}  // namespace coterie::comm
