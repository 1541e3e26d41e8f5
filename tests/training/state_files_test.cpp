// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/state_files.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tests/models/scratch_folder.hpp"
#include "tests/training/stand_in_model.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

StepInput input_of(const comm::Communicator& world, std::uint64_t step) {
  StepInput input;
  input.micro_batches.resize(1);
  for (int s = 0; s < 4; ++s) {
    if (s % world.size() == world.rank()) {
      std::vector<std::int32_t> sequence;
      for (int i = 0; i <= 8; ++i) {
        sequence.push_back(static_cast<std::int32_t>((step * 37 + s * 5 + i * 11) % 50));
      }
      input.micro_batches[0].sequences.push_back(sequence);
    }
  }
  input.num_targets = 32;
  input.num_sequences = 4;
  return input;
}

/// Steps [first, last); the mean loss of each.
std::vector<double> train(Model& model, AdamW& adamw, comm::Communicator& world,
                          std::uint64_t first, std::uint64_t last) {
  std::vector<double> losses;
  for (std::uint64_t step = first; step < last; ++step) {
    model.zero_gradients();
    const StepResult result = model.forward_backward(input_of(world, step));
    model.sum_gradients();
    const double norm = global_gradient_norm(model.parameters(), world);
    adamw.step(1e-2, clip_factor(norm, 1.0));
    losses.push_back(result.loss_sum / 32 + result.aux_loss);
  }
  return losses;
}

StateToWrite state_of(const fs::path& folder, const Model& model, AdamW& adamw) {
  return {folder, &adamw, Json{{"step", 3}},
          [&model](const fs::path& place) { model.write_description(place); }};
}

/// Trains 3 steps on `ranks` ranks, writes, trains 3 more: the losses of the last three.
std::vector<double> train_and_write(int ranks, bool spread, const fs::path& folder,
                                    at::ScalarType type) {
  std::vector<double> losses;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    StandInModel model(world, spread, type);
    AdamW adamw(model.parameters(), {});
    train(model, adamw, world, 0, 3);
    write_state(state_of(folder, model, adamw), world, NoProgress::instance());
    const auto mine = train(model, adamw, world, 3, 6);
    if (world.rank() == 0) {
      losses = mine;
    }
  });
  return losses;
}

std::vector<double> read_and_train(int ranks, bool spread, const fs::path& folder,
                                   at::ScalarType type) {
  std::vector<double> losses;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    StandInModel model(world, spread, type);
    for (Parameter& parameter : model.parameters()) {
      parameter.value.detach().fill_(7);  // nothing may survive the reading
    }
    AdamW adamw(model.parameters(), {});
    const Json trainer = read_state(folder, adamw, world);
    EXPECT_EQ(trainer["step"], 3);
    EXPECT_EQ(adamw.num_steps(), 3);
    const auto mine = train(model, adamw, world, 3, 6);
    if (world.rank() == 0) {
      losses = mine;
    }
  });
  return losses;
}

TEST(StateFilesTest, ResumesBitExactlyAndAtAnyLayout) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const models::ScratchFolder scratch;
    const fs::path folder = scratch / "step";
    const std::vector<double> expected = train_and_write(4, true, folder, type);
    EXPECT_EQ(read_and_train(4, true, folder, type), expected);
    for (const auto& [ranks, spread] : {std::pair{1, true}, {2, true}, {8, true}, {2, false}}) {
      const std::vector<double> losses = read_and_train(ranks, spread, folder, type);
      ASSERT_EQ(losses.size(), expected.size());
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const double limit = type == at::kBFloat16 ? 1e-3 : 1e-5;
        EXPECT_NEAR(losses[i], expected[i], limit * expected[i]) << ranks << " ranks, step " << i;
      }
    }
  }
}

TEST(StateFilesTest, FilesAreTheSameForEveryLayout) {
  const models::ScratchFolder scratch;
  train_and_write(1, true, scratch / "one", at::kFloat);
  const auto rewrite = [&](int ranks, bool spread, const fs::path& to) {
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      StandInModel model(world, spread);
      AdamW adamw(model.parameters(), {});
      read_state(scratch / "one", adamw, world);
      write_state(state_of(to, model, adamw), world, NoProgress::instance());
    });
  };
  int number = 0;
  for (const auto& [ranks, spread] : {std::pair{2, true}, {4, true}, {8, true}, {3, false}}) {
    const fs::path to = scratch / ("again" + std::to_string(number++));
    rewrite(ranks, spread, to);
    for (const char* name : {"model.safetensors", kOptimizerFile, kTrainerFile, "config.json"}) {
      EXPECT_EQ(read_text_file(to / name), read_text_file(scratch / "one" / name)) << name;
    }
  }
}

TEST(StateFilesTest, DamageIsRefusedByName) {
  const models::ScratchFolder scratch;
  train_and_write(1, true, scratch / "good", at::kFloat);
  const auto message_of_reading = [&](const fs::path& folder) {
    std::string message;
    try {
      read_and_train(1, true, folder, at::kFloat);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      message = error.what();
    }
    return message;
  };
  const auto copy_with = [&](const char* name, auto change) {
    const fs::path folder = scratch / name;
    fs::copy(scratch / "good", folder, fs::copy_options::recursive);
    change(folder);
    return message_of_reading(folder);
  };
  EXPECT_NE(copy_with("cut",
                      [](const fs::path& folder) {
                        const fs::path file = folder / kOptimizerFile;
                        fs::resize_file(file, fs::file_size(file) - 1);
                      })
                .find("optimizer.safetensors"),
            std::string::npos);
  EXPECT_NE(copy_with("nostate", [](const fs::path& folder) { fs::remove(folder / kTrainerFile); })
                .find("no training checkpoint"),
            std::string::npos);
  const auto rewritten = [&](const char* name, auto edit) {
    return copy_with(name, [&](const fs::path& folder) {
      const models::Checkpoint checkpoint(scratch / "good");
      std::vector<models::OutgoingTensor> tensors;
      for (const models::Tensor& tensor : checkpoint.tensors()) {
        tensors.push_back(models::unchanged(tensor));
      }
      edit(tensors);
      models::write_checkpoint(folder, tensors);
    });
  };
  EXPECT_NE(rewritten("missing", [](auto& tensors) { tensors.pop_back(); }).find("is missing"),
            std::string::npos);
  EXPECT_NE(rewritten("extra",
                      [](auto& tensors) {
                        tensors.push_back(tensors[0]);
                        tensors.back().name = "stranger";
                      })
                .find("stranger"),
            std::string::npos);
}

TEST(CheckpointFolderTest, KeepsTheLastAndNamesTheNewest) {
  const models::ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path());
  EXPECT_THROW(find_checkpoint(scratch.path()), Error);
  comm::SingleCommunicator world;
  StandInModel model(world, true);
  AdamW adamw(model.parameters(), {});
  for (const std::int64_t step : {2, 4, 10, 12}) {
    folder.prepare(step);
    write_state(state_of(folder.path_of(step), model, adamw), world, NoProgress::instance());
    folder.committed(step, 2);
    EXPECT_EQ(find_checkpoint(scratch.path()), folder.path_of(step));
  }
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{10, 12}));
  EXPECT_EQ(find_checkpoint(folder.path_of(10)), folder.path_of(10));
}

/// Writes checkpoint after checkpoint until killed.
[[noreturn]] void write_for_ever(const fs::path& run) {
  comm::SingleCommunicator world;
  StandInModel model(world, true);
  AdamW adamw(model.parameters(), {});
  const CheckpointFolder folder(run);
  for (std::int64_t step = 1;; ++step) {
    folder.prepare(step);
    StateToWrite state = state_of(folder.path_of(step), model, adamw);
    state.trainer["step"] = step;
    write_state(state, world, NoProgress::instance());
    folder.committed(step, 2);
  }
}

TEST(CheckpointFolderTest, KilledAtAnyMomentTheLastGoodOneStays) {
  const models::ScratchFolder scratch;
  at::set_num_threads(1);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const fs::path run = scratch / ("run" + std::to_string(attempt));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      write_for_ever(run);
    }
    while (!fs::exists(run / "checkpoints" / "latest")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(attempt * 2473));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);

    comm::SingleCommunicator world;
    StandInModel model(world, true);
    AdamW adamw(model.parameters(), {});
    const fs::path found = find_checkpoint(run);
    const Json trainer = read_state(found, adamw, world);
    EXPECT_EQ(CheckpointFolder(run).path_of(trainer["step"].get<std::int64_t>()), found);
    // And a new process goes on in the same folder.
    const CheckpointFolder folder(run);
    folder.prepare(1000);
    write_state(state_of(folder.path_of(1000), model, adamw), world, NoProgress::instance());
    folder.committed(1000, 1);
    EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{1000}));
    EXPECT_EQ(std::distance(fs::directory_iterator(run / "checkpoints"), fs::directory_iterator()),
              2);
    fs::remove_all(run);
  }
}

}  // namespace
}  // namespace coterie::training
