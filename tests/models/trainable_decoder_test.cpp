// SPDX-License-Identifier: Apache-2.0
// Losses and gradients of the trainable decoder against the obvious formulas, at every layout.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/models/plain_decoder.hpp"

namespace coterie::models {
namespace {

const std::vector<std::string> kFamilies = {"gpt2_moe", "mixtral", "olmoe", "qwen3_moe"};

/// Every EP x ESP x MP of at most four ranks with the data parallelism that it needs, and stages.
std::vector<parallel::LayoutOptions> layouts() {
  std::vector<parallel::LayoutOptions> all;
  for (int data = 1; data <= 4; ++data) {
    for (int model = 1; data * model <= 4; model *= 2) {
      for (const int expert : {1, 2, 4}) {
        for (const int shard : {1, 2, 4}) {
          if (data * model % (expert * shard) == 0) {
            all.push_back({data, model, expert, shard, 1});
          }
        }
      }
    }
  }
  all.push_back({1, 1, 1, 1, 2});
  all.push_back({2, 1, 2, 1, 2});
  all.push_back({1, 2, 2, 1, 2});
  all.push_back({1, 2, 1, 2, 2});
  return all;
}

/// Largest difference, relative to the largest gradient of the tensor (or 1e-3).
double difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = std::max(1e-3, b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() / scale;
}

void expect_equal(const WholeTensors& found, const WholeTensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_LT(difference(found.at(name), tensor), tolerance) << name;
  }
}

class EveryFamily : public testing::TestWithParam<std::string> {};

TEST_P(EveryFamily, LossAndGradientsAreThoseOfTheObviousFormulas) {
  const TrainableConfig config = tiny_config(GetParam());
  TrainableOptions options = tiny_options();
  for (const bool reference : {true, false}) {
    options.reference = reference;
    const Gradients found = gradients_of(config, options, {});
    WholeTensors weights;
    for (const auto& [name, value] : found.values) {
      weights[name] = value.clone().requires_grad_(true);
    }
    const at::Tensor loss = plain_loss(config, weights, step_sequences(config.model.vocab_size, 0),
                                       options.gate.balance);
    EXPECT_NEAR(found.loss, loss.item<double>(), 1e-12);
    torch::autograd::backward({loss}, {});
    WholeTensors expected;
    for (const auto& [name, weight] : weights) {
      expected[name] = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
    }
    expect_equal(found.gradients, expected, 1e-10);
  }
}

TEST_P(EveryFamily, RecomputingBlocksChangesNoBit) {
  const TrainableConfig config = tiny_config(GetParam());
  TrainableOptions options = tiny_options();
  options.reference = true;
  const Gradients kept = gradients_of(config, options, {});
  options.recompute = true;
  const Gradients again = gradients_of(config, options, {});
  EXPECT_EQ(again.loss, kept.loss);
  for (const auto& [name, gradient] : kept.gradients) {
    EXPECT_TRUE(at::equal(again.gradients.at(name), gradient)) << name;
  }
}

TEST_P(EveryFamily, EveryLayoutHasTheSameLossAndGradients) {
  const TrainableConfig config = tiny_config(GetParam());
  const TrainableOptions options = tiny_options();
  const Gradients expected = gradients_of(config, options, {});
  for (const parallel::LayoutOptions& layout : layouts()) {
    SCOPED_TRACE(parallel::format_options(layout));
    const Gradients found = gradients_of(config, options, layout);
    EXPECT_NEAR(found.loss, expected.loss, 1e-12);
    for (const auto& [name, value] : expected.values) {
      EXPECT_TRUE(at::equal(found.values.at(name), value)) << name;
    }
    expect_equal(found.gradients, expected.gradients, 1e-10);
  }
}

TEST_P(EveryFamily, PrunedLayoutsHaveTheLossOfOneProcessForAllDevices) {
  const TrainableConfig config = tiny_config(GetParam());
  TrainableOptions options = tiny_options();
  const auto num_experts = static_cast<std::int32_t>(config.model.num_experts);
  const auto num_layers = config.model.moe_layers.size();
  options.placements.assign(num_layers, placement::contiguous_placement(num_experts, 4));
  const Gradients unpruned = gradients_of(config, options, {});
  options.pruning.emplace();
  options.pruning->num_devices = 4;
  options.pruning->layers = config.model.moe_layers;
  options.pruning->options.layer_budgets.assign(num_layers, pruning::Budget{1});
  const Gradients expected = gradients_of(config, options, {});
  EXPECT_NE(expected.loss, unpruned.loss);
  for (const parallel::LayoutOptions& layout : {parallel::LayoutOptions{4, 1, 4, 1, 1},
                                                {1, 4, 4, 1, 1},
                                                {2, 2, 4, 1, 1},
                                                {2, 1, 1, 1, 2}}) {
    SCOPED_TRACE(parallel::format_options(layout));
    const Gradients found = gradients_of(config, options, layout);
    EXPECT_NEAR(found.loss, expected.loss, 1e-12);
    expect_equal(found.gradients, expected.gradients, 1e-10);
  }
  options.pruning->num_devices = 2;
  EXPECT_THROW(gradients_of(config, options, {}), Error);
}

TEST_P(EveryFamily, TenLossesAreTheGoldenOnesAtEveryLayout) {
  TrainingRun run{tiny_config(GetParam()), tiny_options(), {}};
  const auto path = tests::source_dir() / "tests/golden/training_losses.json";
  Json golden = std::filesystem::exists(path) ? read_json_file(path) : Json::object();
  if (std::getenv("COTERIE_UPDATE_GOLDEN") != nullptr) {
    golden[GetParam()] = train_in_threads(run);
    write_json_file(path, golden);
  }
  const auto expected = golden.at(GetParam()).get<std::vector<double>>();
  ASSERT_EQ(expected.size(), 10U);
  EXPECT_LT(expected.back(), expected.front());  // it learns something
  std::vector<parallel::LayoutOptions> all = layouts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(parallel::format_options(all[i]));
    run.layout = all[i];
    run.options.recompute = i % 3 == 1;
    run.options.forward_chunks = 1 + static_cast<int>(i % 2);
    run.options.backward_chunks = 1 + static_cast<int>(i % 3);
    run.num_micro = 1 + i % 3;
    const std::vector<double> losses = train_in_threads(run);
    for (std::size_t step = 0; step < 10; ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-9 * std::abs(expected[step])) << step;
    }
  }
}

TEST_P(EveryFamily, ARunIsEqualToItsRepetitionToTheLastBit) {
  TrainingRun run{tiny_config(GetParam()), tiny_options(), {2, 2, 2, 2, 1}};
  run.num_steps = 3;
  EXPECT_EQ(train_in_threads(run), train_in_threads(run));
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamily, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return family.param; });

TEST(TrainableDecoder, IdleExpertsGetZerosAndEmptyStepsPass) {
  const TrainableConfig config = tiny_config("mixtral");
  comm::SingleCommunicator world;
  parallel::Groups groups(world, parallel::Layout());
  TrainableDecoder decoder(config, groups, tiny_options());
  // One token: two of eight experts work.
  MicroBatch one{at::tensor({3, 4}, at::kLong), {0, 2}, {}, {}, {}};
  one.is_real = at::tensor({1, 0}).to(at::kBool);
  static_cast<void>(decoder.forward_backward(std::span(&one, 1), 0));
  decoder.reduce_gradients();
  for (const TrainableParameter& parameter : decoder.parameters()) {
    if (!parameter.is_expert()) {
      continue;
    }
    int idle = 0;
    for (std::int64_t e = 0; e < 8; ++e) {
      idle += parameter.value.grad()[e].eq(0).all().item<bool>() ? 1 : 0;
    }
    EXPECT_GE(idle, 6) << parameter.name;
  }
  decoder.zero_gradients();
  MicroBatch nothing{at::empty({0}, at::kLong), {0}, {}, {}, {}};
  const StepResult result = decoder.forward_backward(std::span(&nothing, 1), 0);
  EXPECT_EQ(result.num_targets, 0);
  EXPECT_EQ(result.mean_loss(), 0);
  decoder.reduce_gradients();
  for (const TrainableParameter& parameter : decoder.parameters()) {
    EXPECT_TRUE(parameter.value.grad().eq(0).all().item<bool>()) << parameter.name;
  }
}

TEST(TrainableDecoder, PaddingChangesNothing) {
  const TrainableConfig config = tiny_config("olmoe");
  comm::SingleCommunicator world;
  parallel::Groups groups(world, parallel::Layout());
  TrainableDecoder decoder(config, groups, tiny_options());
  MicroBatch plain{at::tensor({3, 4, 9, 1, 5}, at::kLong), {0, 5}, {}, {}, {}};
  const StepResult expected = decoder.forward_backward(std::span(&plain, 1), 0);
  WholeTensors gradients;
  ASSERT_TRUE(add_pieces(gradients, decoder, Part::kGradient));
  decoder.zero_gradients();
  MicroBatch padded{at::tensor({3, 4, 9, 1, 5, 0, 0}, at::kLong), {0, 7}, {}, {}, {}};
  padded.is_real = at::tensor({1, 1, 1, 1, 1, 0, 0}).to(at::kBool);
  const StepResult found = decoder.forward_backward(std::span(&padded, 1), 0);
  EXPECT_EQ(found.num_targets, 4);
  EXPECT_NEAR(found.loss_sum, expected.loss_sum, 1e-12);
  EXPECT_NEAR(found.aux_loss, expected.aux_loss, 1e-12);
  EXPECT_EQ(found.layers[0].routing.picks_per_expert, expected.layers[0].routing.picks_per_expert);
  WholeTensors with_padding;
  ASSERT_TRUE(add_pieces(with_padding, decoder, Part::kGradient));
  expect_equal(with_padding, gradients, 1e-12);
}

void expect_refused(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    FAIL() << "must be refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(TrainableDecoder, BadSizesAndTokensAreNamed) {
  const auto make = [](const parallel::LayoutOptions& layout, const TrainableConfig& config) {
    comm::run_ranks(layout.world_size(), [&](comm::Communicator& world) {
      parallel::Groups groups(world, parallel::Layout(layout));
      const TrainableDecoder decoder(config, groups, tiny_options());
    });
  };
  TrainableConfig config = tiny_config("mixtral");
  config.model.num_kv_heads = 1;
  expect_refused(
      [&] {
        make({1, 2, 1, 1, 1}, config);
      },
      "num_key_value_heads = 1 does not divide by model = 2");
  config = tiny_config("mixtral");
  config.model.num_experts = 7;
  expect_refused(
      [&] {
        make({2, 1, 2, 1, 1}, config);
      },
      "layer 0: num_experts = 7 does not divide by expert = 2");
  config.model.num_experts = 8;
  config.model.expert_intermediate_size = 9;
  expect_refused(
      [&] {
        make({2, 1, 1, 2, 1}, config);
      },
      "expert_intermediate_size = 9 does not divide by expert_shard = 2");
  expect_refused([&] { make({1, 1, 1, 1, 3}, tiny_config("mixtral")); }, "3 stages for 2 layers");

  comm::SingleCommunicator world;
  parallel::Groups groups(world, parallel::Layout());
  TrainableDecoder decoder(tiny_config("mixtral"), groups, tiny_options());
  MicroBatch batch{at::tensor({3, 37}, at::kLong), {0, 2}, {}, {}, {}};
  expect_refused([&] { static_cast<void>(decoder.forward_backward(std::span(&batch, 1), 0)); },
                 "micro-batch 0, token 1: token id 37 is outside [0, 37)");
  batch = {at::zeros({33}, at::kLong), {0, 33}, {}, {}, {}};
  expect_refused([&] { static_cast<void>(decoder.evaluate(std::span(&batch, 1))); },
                 "sequence 0: 33 tokens, the model allows 32");
}

TEST(TrainableDecoder, NarrowTypesStayNearFp64) {
  for (const std::string& family : kFamilies) {
    const TrainableConfig config = tiny_config(family);
    TrainableOptions options = tiny_options();
    const double expected = gradients_of(config, options, {}).loss;
    for (const auto& [type, tolerance] :
         {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 3e-2}}) {
      options.type = type;
      for (const auto& layout : {parallel::LayoutOptions{}, parallel::LayoutOptions{2, 2, 2, 2, 1},
                                 parallel::LayoutOptions{1, 1, 1, 1, 2}}) {
        const Gradients found = gradients_of(config, options, layout);
        EXPECT_NEAR(found.loss, expected, tolerance * expected)
            << family << " " << at::toString(type) << " " << parallel::format_options(layout);
        for (const auto& [name, gradient] : found.gradients) {
          EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
        }
      }
    }
  }
}

TEST(TrainableDecoder, EvaluationIsTheLossWithoutGradients) {
  TrainableOptions options = tiny_options();
  for (const auto& layout : {parallel::LayoutOptions{}, parallel::LayoutOptions{2, 1, 2, 1, 2}}) {
    comm::run_ranks(layout.world_size(), [&](comm::Communicator& world) {
      parallel::Groups groups(world, parallel::Layout(layout));
      TrainableDecoder decoder(tiny_config("gpt2_moe"), groups, options);
      const auto batches =
          micro_batches(step_sequences(37, 3), groups.coordinates().data, layout.data, 2);
      const StepResult evaluated = decoder.evaluate(batches);
      EXPECT_FALSE(decoder.parameters()[0].value.grad().defined());
      EXPECT_EQ(evaluated.loss_sum, decoder.forward_backward(batches, 0).loss_sum);
    });
  }
}

TEST(TrainableDecoder, ConfigsComeBackFromJson) {
  for (const std::string& family : kFamilies) {
    const TrainableConfig config = tiny_config(family);
    EXPECT_EQ(trainable_config_from_json(to_config_json(config), "test"), config) << family;
  }
}

TEST(TrainableDecoder, ReduceTableNamesEveryParameterOnce) {
  comm::run_ranks(4, [](comm::Communicator& world) {
    parallel::Groups groups(world, parallel::Layout({2, 2, 2, 2, 1}));
    const TrainableDecoder decoder(tiny_config("gpt2_moe"), groups, tiny_options());
    const parallel::ReduceTable table = decoder.reduce_table();
    ASSERT_EQ(table.size(), decoder.parameters().size());
    for (const parallel::ReduceEntry& entry : table) {
      const int expected = entry.kind == parallel::ParameterKind::kExpert       ? 1
                           : entry.kind == parallel::ParameterKind::kExpertBias ? 2
                           : entry.kind == parallel::ParameterKind::kHeadShard  ? 2
                                                                                : 4;
      EXPECT_EQ(entry.group_size, expected) << entry.parameter;
      EXPECT_EQ(entry.scale, 1.0);
    }
  });
}

}  // namespace
}  // namespace coterie::models
