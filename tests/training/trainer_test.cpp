// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/trainer.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include <sstream>

#include "tests/folders.hpp"
#include "tests/models/scratch_folder.hpp"
#include "tests/training/stand_in_model.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

Recipe small_recipe() {
  Recipe recipe = read_recipe(parse_json(bundled_recipe("mixtral-toy"), "x"), "x");
  recipe.num_steps = 12;
  recipe.sequence_length = 16;
  recipe.batch_sequences = 6;
  recipe.micro_batch_sequences = 2;
  recipe.evaluate_every = 4;
  recipe.evaluation_sequences = 8;
  recipe.checkpoint_every = 4;
  recipe.rate.warmup_steps = 2;
  recipe.rate.peak = 0.05;
  recipe.peak_gflops = 1;
  return recipe;
}

RunOptions into(const fs::path& out, std::int64_t stop_after = 0, const fs::path& resume = {}) {
  RunOptions options;
  options.out = out;
  options.stop_after = stop_after;
  options.resume = resume;
  return options;
}

RunResult train(int ranks, const Recipe& recipe, const RunOptions& options) {
  RunResult result;
  at::set_num_threads(1);  // ranks are threads here
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    StandInModel model(world, true);
    const RecipePaths paths{".", tests::source_dir() / "demo"};
    TrainingData data(recipe, paths, NoProgress::instance());
    const Workplace place{
        recipe, model, data, world, DataShare{world.rank(), world.size()}, NoProgress::instance()};
    const RunResult mine = run_training(place, options);
    if (world.rank() == 0) {
      result = mine;
    }
  });
  return result;
}

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> rows;
  std::istringstream lines(read_text_file(path));
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(parse_json(line, path.string()));
  }
  return rows;
}

std::vector<double> losses_of(const fs::path& run) {
  std::vector<double> losses;
  for (const Json& row : lines_of(run / "metrics.jsonl")) {
    losses.push_back(row.contains("loss") ? row["loss"].get<double>()
                                          : row["held_out"]["loss"].get<double>());
  }
  return losses;
}

TEST(TrainerTest, WritesWhatItPromises) {
  const models::ScratchFolder scratch;
  const RunResult result = train(1, small_recipe(), into(scratch / "run"));
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.last_step, 12);
  EXPECT_EQ(result.checkpoint, scratch / "run" / "checkpoints" / "step-00000012");
  const auto rows = lines_of(scratch / "run" / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 12U + 3U);
  EXPECT_EQ(rows[0]["step"], 1);
  EXPECT_EQ(rows[0]["num_tokens"], 96);
  EXPECT_EQ(rows[4]["held_out"]["sources"].size(), 4U);
  EXPECT_GT(rows[4]["held_out"]["sources"][0]["bits_per_byte"], 0.5);
  EXPECT_LT(rows.back()["held_out"]["loss"], rows[0]["loss"]);
  EXPECT_EQ(CheckpointFolder(scratch / "run").steps(), (std::vector<std::int64_t>{8, 12}));
  EXPECT_EQ(read_recipe(read_json_file(scratch / "run" / "recipe.json"), "x"), small_recipe());
  EXPECT_TRUE(fs::exists(result.checkpoint / "tokenizer.json"));
}

TEST(TrainerTest, AResumedRunHasTheBitsOfOneThatNeverStopped) {
  const models::ScratchFolder scratch;
  train(2, small_recipe(), into(scratch / "whole"));
  const RunResult half = train(2, small_recipe(), into(scratch / "cut", 7));
  EXPECT_FALSE(half.is_complete);
  EXPECT_EQ(half.last_step, 7);
  train(2, small_recipe(), into(scratch / "cut", 0, half.checkpoint));
  for (const char* name : {"model.safetensors", kOptimizerFile, kTrainerFile}) {
    const fs::path path = fs::path("checkpoints") / "step-00000012" / name;
    EXPECT_TRUE(read_text_file(scratch / "whole" / path) == read_text_file(scratch / "cut" / path))
        << name;
  }
  // The stop added an evaluation after step 7; all else is the same.
  std::vector<double> cut = losses_of(scratch / "cut");
  cut.erase(cut.begin() + 8);
  EXPECT_EQ(cut, losses_of(scratch / "whole"));
}

TEST(TrainerTest, LayoutsAgreeAndRunsGoOnInOthers) {
  const models::ScratchFolder scratch;
  train(1, small_recipe(), into(scratch / "one"));
  const std::vector<double> expected = losses_of(scratch / "one");
  const RunResult half = train(4, small_recipe(), into(scratch / "four", 8));
  for (const int ranks : {1, 2, 8}) {
    const std::string name = "from_four_" + std::to_string(ranks);
    fs::copy(scratch / "four", scratch / name, fs::copy_options::recursive);
    train(ranks, small_recipe(), into(scratch / name, 0, half.checkpoint));
    const std::vector<double> losses = losses_of(scratch / name);
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << ranks << ", line " << i;
    }
  }
}

TEST(TrainerTest, StopsWhenAskedOnAnyRankAndWritesACheckpoint) {
  const models::ScratchFolder scratch;
  std::atomic<int> asked = 0;
  RunOptions options = into(scratch / "run");
  options.should_stop = [&] { return ++asked == 8; };  // one of four ranks, in the second step
  const RunResult result = train(4, small_recipe(), options);
  EXPECT_EQ(result.last_step, 2);
  EXPECT_FALSE(result.is_complete);
  EXPECT_EQ(find_checkpoint(scratch / "run"), result.checkpoint);
}

TEST(TrainerTest, RefusesOtherDataAndDivergence) {
  const models::ScratchFolder scratch;
  const RunResult result = train(1, small_recipe(), into(scratch / "run"));
  Recipe other = small_recipe();
  other.num_steps = 20;
  other.data.sources.pop_back();
  try {
    train(1, other, into(scratch / "run", 0, result.checkpoint));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("other data"), std::string::npos);
  }
  Recipe wild = small_recipe();
  wild.rate.peak = 1e30;
  wild.clip_norm = 0;
  EXPECT_THROW(train(1, wild, into(scratch / "wild")), Error);
}

TEST(MetricsTest, ResumingDropsLaterLinesAndHalfWrittenOnes) {
  const models::ScratchFolder scratch;
  const fs::path path = scratch / "metrics.jsonl";
  write_text_file(path,
                  "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"held_out\":{}}\n{\"step\":3}\n{\"st");
  MetricsFile file(path, 2);
  file.append(Json{{"step", 3}});
  EXPECT_EQ(read_text_file(path),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"held_out\":{}}\n{\"step\":3}\n");
}

}  // namespace
}  // namespace coterie::training
