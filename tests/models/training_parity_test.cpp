// SPDX-License-Identifier: Apache-2.0
// Loss and all gradients of the trainable decoder against transformers (fp64 weights; transformers
// itself computes norms, attention's softmax and the router's in fp32), at one rank and spread.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "tests/folders.hpp"
#include "tests/models/training_case.hpp"

namespace coterie::models {
namespace {

std::filesystem::path cases() {
  return tests::binary_dir() / "training_cases";
}

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

class Parity : public testing::TestWithParam<std::string> {};

TEST_P(Parity, LossAndGradientsAreThoseOfTransformers) {
  if (!std::filesystem::exists(cases() / "done")) {
    GTEST_SKIP() << "no transformers";
  }
  const TrainableConfig config = read_trainable_config(cases() / GetParam());
  const SafetensorsFile expected(cases() / (GetParam() + ".expected.safetensors"));
  std::vector<std::vector<std::int64_t>> sequences;
  for (int n = 0; expected.find("tokens." + std::to_string(n)) != nullptr; ++n) {
    sequences.push_back(values<std::int64_t>(expected, "tokens." + std::to_string(n)));
  }
  ASSERT_EQ(sequences.size(), 5U);
  const Checkpoint weights(cases() / GetParam());
  const Checkpoint gradients(cases() / (GetParam() + ".gradients"));
  TrainableOptions options = tiny_options();
  options.gate.balance = {};
  for (const parallel::LayoutOptions layout :
       {parallel::LayoutOptions{}, parallel::LayoutOptions{2, 2, 2, 2, 1},
        parallel::LayoutOptions{1, 1, 1, 1, 2}}) {
    comm::run_ranks(layout.world_size(), [&](comm::Communicator& world) {
      parallel::Groups groups(world, parallel::Layout(layout));
      TrainableDecoder decoder(config, groups, options);
      decoder.load(weights);
      const StepResult step = decoder.forward_backward(
          micro_batches(sequences, groups.coordinates().data, layout.data, 2), 0);
      decoder.reduce_gradients();
      const double loss = values<double>(expected, "loss")[0];
      EXPECT_NEAR(step.mean_loss(), loss, 1e-6 * loss);
      for (const TrainableParameter& parameter : decoder.parameters()) {
        TrainableParameter theirs = parameter;
        theirs.value = at::empty_like(parameter.value);
        read_parameter(theirs, gradients);
        const double scale = std::max(1e-4, theirs.value.abs().max().item<double>());
        const double off = (parameter.value.grad() - theirs.value).abs().max().item<double>();
        EXPECT_LT(off, 2e-5 * scale) << parameter.name;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         testing::Values("mixtral", "mixtral_tied", "olmoe", "olmoe_norm",
                                         "qwen3_moe"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace coterie::models
