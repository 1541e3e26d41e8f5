// SPDX-License-Identifier: Apache-2.0
// Logits of expert-parallel runs, by the command that users have: `coterie run --json`.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "tests/folders.hpp"
#include "tests/models/scratch_folder.hpp"
#include "tests/models/tiny_model.hpp"

namespace coterie {
namespace {

using models::ScratchFolder;
using models::TinyModel;

struct Outcome {
  int exit_code = 0;
  std::string output;
  [[nodiscard]] Json json() const { return parse_json(output, "standard output"); }
};

Outcome run_coterie(const std::string& arguments) {
  const std::string command = std::string(COTERIE_PROGRAM) + " run --quiet --json " + arguments;
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Outcome outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

/// The bar: all that `coterie run` compares holds.
void expect_passed(const Outcome& outcome, const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const Json json = outcome.json();
  EXPECT_TRUE(json.at("passed").get<bool>()) << outcome.output;
  EXPECT_TRUE(json.at("traffic").at("equal_on_every_rank").get<bool>());
  EXPECT_GT(json.at("traffic").at("dispatch").at("bytes_sent").get<std::uint64_t>(), 0U);
  const Json& logits = json.at("logits");
  EXPECT_TRUE(logits.at("bit_equal_to_one_process_with_same_placement").get<bool>());
  EXPECT_TRUE(logits.at("bit_identical_from_run_to_run").get<bool>());
  EXPECT_LE(logits.at("max_difference").get<double>(), 5e-6);
  EXPECT_GT(logits.at("max_abs_logit").get<double>(), 0.1);
}

std::string digest_of(const Outcome& outcome) {
  return outcome.json().at("logits").at("digest").get<std::string>();
}

/// Ten experts divide by neither 4 nor 8 devices; lengths of sequences are ragged, some are empty.
class ExpertParallel : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.num_experts = 10;
    models::write_tiny_model(folder_.path(), model_);
    write_tokens({7, 0, 1, 19, 3, 0, 12, 40, 2, 2, 31});
  }

  void write_tokens(const std::vector<int>& lengths) {
    Random random(5);
    std::string text;
    for (const int length : lengths) {
      Json ids = Json::array();
      for (int i = 0; i < length; ++i) {
        ids.push_back(random.below(static_cast<std::uint64_t>(model_.vocab)));
      }
      text += ids.dump() + "\n";
    }
    write_text_file(folder_ / "tokens.jsonl", text);
  }

  /// A placement file with `num_extra` second copies a layer.
  std::string write_placement(const std::string& algorithm, int num_devices, int num_extra) {
    placement::Placement placement;
    placement.algorithm = algorithm;
    placement.options.num_devices = num_devices;
    placement.options.num_redundant_experts = num_extra;
    placement.options.seed = 9;
    routing::ExpertSets sets;
    sets.num_experts = static_cast<std::int32_t>(model_.num_experts);
    for (std::int32_t layer = 0; layer < model_.num_layers; ++layer) {
      placement.layers.push_back(
          {layer, placement::place_layer(sets, algorithm, placement.options, layer), {}, {}});
    }
    const auto path = folder_ / (algorithm + std::to_string(num_devices) + ".json");
    placement::write_placement(path, placement);
    return path.string();
  }

  [[nodiscard]] std::string input() const {
    return "--model " + folder_.path().string() + " --tokens " +
           (folder_ / "tokens.jsonl").string() + " --batch 4 ";
  }

  ScratchFolder folder_;
  TinyModel model_;
};

TEST_F(ExpertParallel, EveryPlacementOnRanksOfTheFake) {
  for (const int size : {2, 4, 8}) {
    for (const char* name : {"contiguous", "round_robin", "random"}) {
      for (const int num_extra : {0, 3}) {
        const std::string what = "--engine fake --nproc " + std::to_string(size) + " --placement " +
                                 name + " --num-redundant-experts " + std::to_string(num_extra);
        expect_passed(run_coterie(input() + what), what);
      }
    }
  }
}

TEST_F(ExpertParallel, RenormalisedWeights) {
  model_.renormalise = true;
  model_.seed = 2;
  models::write_tiny_model(folder_.path(), model_);
  expect_passed(run_coterie(input() + "--engine fake --nproc 3"), "renormalised");
}

TEST_F(ExpertParallel, ProcessesGiveTheBitsOfTheFakeFromRunToRun) {
  for (const int size : {2, 4, 8}) {
    const std::string flags =
        input() + "--nproc " + std::to_string(size) + " --placement random --seed 4 ";
    const Outcome processes = run_coterie(flags);
    expect_passed(processes, flags);
    EXPECT_EQ(processes.json().at("engine"), "mpi");
    const Outcome fake = run_coterie(flags + "--engine fake");
    expect_passed(fake, flags + "fake");
    EXPECT_EQ(digest_of(processes), digest_of(fake)) << size;
    EXPECT_EQ(processes.json().at("traffic"), fake.json().at("traffic")) << size;
  }
  const std::string again = input() + "--nproc 4 --placement random --seed 4";
  EXPECT_EQ(digest_of(run_coterie(again)), digest_of(run_coterie(again + " --threads 2")));
}

TEST_F(ExpertParallel, PlacementFilesWithCopiesOnProcesses) {
  for (const int size : {2, 4, 8}) {
    const std::string file = write_placement("random", size, 4);
    const Outcome outcome = run_coterie(input() + "--placement " + file);
    expect_passed(outcome, file);
    EXPECT_EQ(outcome.json().at("num_processes").get<int>(), size);
  }
}

TEST_F(ExpertParallel, Bfloat16Weights) {
  expect_passed(run_coterie(input() + "--nproc 2 --dtype bf16"), "bf16");
}

TEST_F(ExpertParallel, RanksWithoutAnySequence) {
  write_tokens({23});
  expect_passed(run_coterie(input() + "--nproc 4"), "one sequence");
}

TEST_F(ExpertParallel, WrongInputEndsBeforeProcessesStart) {
  const std::string file = write_placement("contiguous", 4, 0);
  const Outcome sizes = run_coterie(input() + "--nproc 2 --placement " + file);
  EXPECT_EQ(sizes.exit_code, 2);
  EXPECT_NE(sizes.output.find("the placement is for 4 devices, but 2 processes"), std::string::npos)
      << sizes.output;
  EXPECT_EQ(run_coterie(input() + "--nproc 11").exit_code, 2);
  EXPECT_EQ(run_coterie(input() + "--nproc 2 --placement nonsense").exit_code, 2);
  write_text_file(folder_ / "tokens.jsonl", "[1, 2]\n[1, \"x\"]\n");
  const Outcome tokens = run_coterie(input() + "--nproc 2");
  EXPECT_EQ(tokens.exit_code, 2);
  EXPECT_NE(tokens.output.find("line 2"), std::string::npos) << tokens.output;
}

TEST_F(ExpertParallel, FailureOfOneRankReachesTheShell) {
  model_.nan_expert = 1;  // its tokens spoil the next layer's router
  models::write_tiny_model(folder_.path(), model_);
  const Outcome outcome = run_coterie(input() + "--nproc 4");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  const Json error = outcome.json().at("error");  // one document, though several ranks failed
  EXPECT_EQ(error.at("code"), "bad_input");
  const auto message = error.at("message").get<std::string>();
  EXPECT_EQ(message.find("rank "), 0U) << message;
  EXPECT_NE(message.find("layer 1"), std::string::npos) << message;
  EXPECT_EQ(message.find("aborted"), std::string::npos) << message;
}

TEST(ExpertParallelDemo, BundledModelOn2And4And8Processes) {
  const std::filesystem::path root = tests::source_dir();
  if (!std::filesystem::exists(root / "demo/model/model.safetensors")) {
    GTEST_SKIP() << "demo/model is not there";
  }
  const std::string text = (root / "demo/text").string();
  for (const int size : {2, 4, 8}) {
    const std::string flags = "--model " + (root / "demo/model").string() + " --text " + text +
                              "/novels.heldout.txt " + text + "/code.heldout.txt --nproc " +
                              std::to_string(size) + " --max-tokens 1000 --sequence-length 77";
    expect_passed(run_coterie(flags), flags);
  }
}

}  // namespace
}  // namespace coterie
