// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    static_cast<void>(read(variables));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  return "";
}

void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
  }
}

const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};

TEST(RankEnvironment, NoLauncherIsOneRank) {
  EXPECT_EQ(read({}), RankEnvironment{});
}

TEST(RankEnvironment, ReadsEachLauncher) {
  EXPECT_EQ(read(kMpirun), (RankEnvironment{Launcher::kMpirun, 3, 4, 1}));
  EXPECT_EQ(read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}}),
            (RankEnvironment{Launcher::kPmi, 1, 2, 1}));
  EXPECT_EQ(read({{"SLURM_PROCID", "5"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_STEP_ID", "0"}}),
            (RankEnvironment{Launcher::kSlurm, 5, 8, 1}));
  EXPECT_EQ(read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}),
            (RankEnvironment{Launcher::kTorchrun, 1, 2, 1}));
}

TEST(RankEnvironment, MpirunInsideASlurmJobWins) {
  Variables variables = kMpirun;
  variables.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(read(variables), (RankEnvironment{Launcher::kMpirun, 3, 4, 1}));
}

TEST(RankEnvironment, SlurmBatchScriptIsNoStep) {
  Variables batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}};
  EXPECT_EQ(read(batch), RankEnvironment{});
  batch["SLURM_STEP_ID"] = "4294967291";
  EXPECT_EQ(read(batch), RankEnvironment{});
}

TEST(RankEnvironment, ContradictionsNameBothValues) {
  Variables variables = kMpirun;
  variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  expect_has(refusal_of(variables), {"mpirun says rank 3 of 4", "OMPI_COMM_WORLD_SIZE",
                                     "torchrun says rank 0 of 2", "WORLD_SIZE"});
  variables["RANK"] = "3";
  variables["WORLD_SIZE"] = "4";  // scripts export these from mpirun's
  EXPECT_EQ(read(variables).launcher, Launcher::kMpirun);
  expect_has(refusal_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), {"RANK=4", "WORLD_SIZE=4"});
  expect_has(refusal_of({{"RANK", "1"}}), {"RANK=1", "WORLD_SIZE is not"});
  expect_has(refusal_of({{"WORLD_SIZE", "4"}}), {"WORLD_SIZE=4", "RANK is not"});
  expect_has(refusal_of({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), {"RANK=one", "no whole number"});
  expect_has(refusal_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), {"RANK=-1", "WORLD_SIZE=2"});
  expect_has(refusal_of({{"RANK", ""}, {"WORLD_SIZE", "2"}}), {"RANK="});
}

TEST(RankEnvironment, StartsRanksOnlyWhereNobodyDid) {
  EXPECT_TRUE(must_start_ranks({}, 4));
  EXPECT_FALSE(must_start_ranks({}, 1));
  EXPECT_FALSE(must_start_ranks({}, 0));
  EXPECT_FALSE(must_start_ranks(read(kMpirun), 0));
  EXPECT_FALSE(must_start_ranks(read(kMpirun), 4));
  EXPECT_TRUE(must_start_ranks({Launcher::kSlurm, 0, 1, 0}, 2));
  try {
    static_cast<void>(must_start_ranks(read(kMpirun), 2));
    FAIL();
  } catch (const Error& error) {
    expect_has(error.what(), {"--nproc 2", "mpirun started 4 processes"});
  }
  EXPECT_THROW(static_cast<void>(must_start_ranks({}, -1)), Error);
}

TEST(StartRanks, CommandLineDependsOnWhatTheMachineAllows) {
  StartOptions options;
  options.num_processes = 4;
  options.command = {"program", "--flag", "two words"};
  const auto has = [](const std::vector<std::string>& words, const std::string& word) {
    return std::ranges::find(words, word) != words.end();
  };
  const auto plain = mpirun_command(options, 8, true);
  EXPECT_EQ(plain.front(), "mpirun");
  EXPECT_EQ(plain.back(), "two words");
  EXPECT_TRUE(has(plain, "4"));
  EXPECT_FALSE(has(plain, "btl_vader_single_copy_mechanism"));
  EXPECT_TRUE(has(mpirun_command(options, 8, false), "btl_vader_single_copy_mechanism"));
  EXPECT_FALSE(has(plain, "mpi_yield_when_idle"));
  EXPECT_TRUE(has(mpirun_command(options, 2, true), "mpi_yield_when_idle"));
  options.num_processes = 0;
  EXPECT_THROW(static_cast<void>(start_ranks(options)), Error);
}

TEST(RunInGroup, ChoosesTheEngine) {
  GroupOptions options;
  std::string name;
  run_in_group(options, [&](Communicator& comm) { name = comm.name(); });
  EXPECT_EQ(name, "single");
  options.engine = "fake";
  options.num_fake_ranks = 3;
  std::atomic<int> num_ranks = 0;
  run_in_group(options, [&](Communicator& comm) {
    comm.barrier();
    num_ranks += comm.size();
  });
  EXPECT_EQ(num_ranks, 9);
  options.engine = "pigeons";
  try {
    run_in_group(options, [](Communicator&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    expect_has(error.what(), {"pigeons", "fake", "single"});
  }
}

TEST(RunInGroup, TellsTheCallerBeforeTheOtherRanks) {
  GroupOptions options;
  options.engine = "fake";
  options.num_fake_ranks = 2;
  std::vector<std::string> messages;
  std::mutex mutex;
  options.on_failure = [&](int rank, const std::exception& error) {
    const std::scoped_lock lock(mutex);
    messages.push_back(std::to_string(rank) + ": " + error.what());
  };
  EXPECT_THROW(run_in_group(options,
                            [](Communicator& comm) {
                              if (comm.rank() == 1) {
                                fail(ErrorCode::kBadInput, "file.txt: empty");
                              }
                              comm.barrier();
                            }),
               Error);
  EXPECT_EQ(messages, (std::vector<std::string>{"1: file.txt: empty",
                                                "0: aborted by rank 1: file.txt: empty"}));
}

}  // namespace
}  // namespace coterie::comm
