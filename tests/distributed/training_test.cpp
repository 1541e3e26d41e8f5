// SPDX-License-Identifier: Apache-2.0
// The golden losses of tests/models/trainable_decoder_test.cpp, in processes over MPI.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

void expect_golden(const std::string& family, const std::vector<std::string>& sizes,
                   int num_processes) {
  StartOptions options;
  options.num_processes = num_processes;
  options.command = {COTERIE_TRAINING_PROGRAM, family};
  options.command.insert(options.command.end(), sizes.begin(), sizes.end());
  std::string errors;
  options.on_error_output = [&](std::string_view text) { errors += text; };
  const RanksEnd end = start_ranks(options);
  EXPECT_EQ(end.exit_code, 0) << family << ": " << errors << end.launcher_words;
}

TEST(Training, GoldenLossesOfTwoProcesses) {
  expect_golden("mixtral", {"2", "1", "2", "1", "1"}, 2);   // EP
  expect_golden("gpt2_moe", {"1", "2", "1", "2", "1"}, 2);  // MP and ESP
  expect_golden("olmoe", {"1", "1", "1", "1", "2"}, 2);     // PP
}

TEST(Training, GoldenLossesOfFourProcesses) {
  expect_golden("olmoe", {"2", "2", "2", "2", "1"}, 4);
  expect_golden("gpt2_moe", {"2", "1", "2", "1", "2"}, 4);
}

}  // namespace
}  // namespace coterie::comm
