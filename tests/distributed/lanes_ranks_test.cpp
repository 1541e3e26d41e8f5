// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

TEST(LanesRanks, EveryScheduleOverMpiHasTheBitsOfNone) {
  std::string errors;
  StartOptions options;
  options.num_processes = 4;
  options.command = {COTERIE_LANES_PROGRAM};
  options.on_error_output = [&](std::string_view text) { errors += text; };
  const RanksEnd end = start_ranks(options);
  EXPECT_EQ(end.exit_code, 0) << errors << end.launcher_words
                              << (end.failure ? end.failure->message : "");
}

}  // namespace
}  // namespace coterie::comm
