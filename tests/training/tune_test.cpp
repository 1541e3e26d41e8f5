// SPDX-License-Identifier: Apache-2.0
// What fine-tuning changes and what it leaves, on a tiny decoder.
#include "coterie/training/tune.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>

#include "coterie/base/error.hpp"
#include "coterie/training/training.hpp"
#include "tests/models/scratch_folder.hpp"

namespace coterie::training {
namespace {

Recipe tiny_recipe(TuneMode mode) {
  Recipe recipe;
  recipe.name = "tiny";
  recipe.dtype = "fp64";
  recipe.seed = 7;
  recipe.sequence_length = 8;
  recipe.model = {
      {"model_type", "mixtral"},       {"vocab_size", 50},       {"hidden_size", 16},
      {"intermediate_size", 12},       {"num_hidden_layers", 2}, {"num_attention_heads", 4},
      {"num_key_value_heads", 2},      {"num_local_experts", 4}, {"num_experts_per_tok", 2},
      {"max_position_embeddings", 32}, {"rms_norm_eps", 1e-5},   {"rope_theta", 10000.0},
      {"tie_word_embeddings", false}};
  recipe.tune.mode = mode;
  recipe.tune.lora = {3, 6, true, true};
  return recipe;
}

StepInput input_of(const DataShare& share, std::uint64_t step) {
  StepInput input;
  MicroBatch& batch = input.micro_batches.emplace_back();
  for (int s = share.member; s < 4; s += share.size) {
    std::vector<std::int32_t>& sequence = batch.sequences.emplace_back();
    for (int i = 0; i <= 8; ++i) {
      sequence.push_back(
          static_cast<std::int32_t>((static_cast<int>(step) * 37 + s * 5 + i * 11) % 50));
    }
    batch.numbers.push_back(s);
  }
  input.num_targets = 32;
  input.num_sequences = 4;
  return input;
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors copies_of(std::span<Parameter> parameters) {
  Tensors values;
  for (const Parameter& parameter : parameters) {
    values[parameter.name] = parameter.value.detach().clone();
  }
  return values;
}

class Tuning {
 public:
  explicit Tuning(const Recipe& recipe)
      : groups_(world_, layout_of(recipe)),
        model_(make_decoder_model(recipe, groups_, {}, {})),
        optimizer_(model_->parameters(), recipe.optimizer) {
    at::set_num_threads(1);
  }
  void step(std::uint64_t number) {
    model_->zero_gradients();
    model_->forward_backward(input_of({}, number));
    model_->sum_gradients();
    norm = global_gradient_norm(model_->parameters(), world_);
    optimizer_.step(1e-2, 1);
  }
  [[nodiscard]] double loss() {
    const StepInput input = input_of({}, 0);
    return model_->evaluate(input.micro_batches).loss_sum;
  }
  Model& model() { return *model_; }
  AdamW& optimizer() { return optimizer_; }
  comm::Communicator& world() { return world_; }
  double norm = 0;

 private:
  comm::SingleCommunicator world_;
  parallel::Groups groups_;
  std::unique_ptr<Model> model_;
  AdamW optimizer_;
};

bool is_router(const std::string& name) {
  return name.find(".gate.weight") != std::string::npos;
}

TEST(Tune, ModesChangeWhatTheySay) {
  for (const TuneMode mode : {TuneMode::kFull, TuneMode::kRouterFrozen, TuneMode::kExpertsOnly}) {
    SCOPED_TRACE(name_of(mode));
    Tuning tuning(tiny_recipe(mode));
    const Tensors before = copies_of(tuning.model().parameters());
    const double loss = tuning.loss();
    tuning.step(0);
    tuning.step(0);
    EXPECT_LT(tuning.loss(), loss);
    for (const Parameter& parameter : tuning.model().parameters()) {
      const bool learns = mode == TuneMode::kFull ||
                          (mode == TuneMode::kRouterFrozen && !is_router(parameter.name)) ||
                          (mode == TuneMode::kExpertsOnly && parameter.is_expert);
      EXPECT_EQ(at::equal(parameter.value, before.at(parameter.name)), !learns) << parameter.name;
      EXPECT_EQ(parameter.is_frozen, !learns) << parameter.name;
    }
  }
}

TEST(Tune, FrozenParametersHaveNoStateAndResumeFromFiles) {
  const models::ScratchFolder scratch;
  const Recipe recipe = tiny_recipe(TuneMode::kExpertsOnly);
  Tuning tuning(recipe);
  tuning.step(0);
  NoProgress silent;
  write_state({scratch.path() / "state", &tuning.optimizer(), Json::object(),
               [&](const auto& folder) { tuning.model().write_description(folder); }},
              tuning.world(), silent);
  tuning.step(1);
  Tuning again(recipe);
  read_state(scratch.path() / "state", again.optimizer(), again.world());
  again.step(1);
  const Tensors wanted = copies_of(tuning.model().parameters());
  for (const Parameter& parameter : again.model().parameters()) {
    EXPECT_TRUE(at::equal(parameter.value, wanted.at(parameter.name))) << parameter.name;
  }
  Tuning full(tiny_recipe(TuneMode::kFull));
  EXPECT_LT(tuning.optimizer().num_bytes(), full.optimizer().num_bytes());
}

TEST(Lora, BeginsAsTheModelAndHasTheGradientsOfDifferences) {
  Tuning full(tiny_recipe(TuneMode::kFull));
  Tuning lora(tiny_recipe(TuneMode::kLora));
  EXPECT_EQ(lora.loss(), full.loss());  // B is zero
  lora.step(0);                         // now it is not
  Model& model = lora.model();
  model.zero_gradients();
  model.forward_backward(input_of({}, 1));
  model.sum_gradients();
  const auto mean_loss = [&] {
    const StepInput input = input_of({}, 1);
    const LossSum sum = model.evaluate(input.micro_batches);
    return sum.loss_sum / 32;
  };
  std::size_t num_checked = 0;
  for (std::size_t i = 0; i < model.parameters().size(); i += 5) {
    Parameter& parameter = model.parameters()[i];
    const double gradient = parameter.value.grad().flatten()[1].item<double>();
    at::Tensor entry = parameter.value.detach().flatten().narrow(0, 1, 1);
    constexpr double kStep = 1e-5;
    entry.add_(kStep);
    const double above = mean_loss();
    entry.sub_(2 * kStep);
    const double below = mean_loss();
    entry.add_(kStep);
    EXPECT_NEAR(gradient, (above - below) / (2 * kStep), 1e-7) << parameter.name;
    num_checked += std::abs(gradient) > 1e-6 ? 1 : 0;
  }
  EXPECT_GT(num_checked, 5U);
}

TEST(Lora, LearnsExportsTheMergedModelAndLeavesTheRest) {
  const models::ScratchFolder scratch;
  const Recipe recipe = tiny_recipe(TuneMode::kLora);
  Tuning lora(recipe);
  Tuning plain(tiny_recipe(TuneMode::kFull));
  const double before = lora.loss();
  for (int i = 0; i < 5; ++i) {
    lora.step(0);
  }
  EXPECT_LT(lora.loss(), before);
  NoProgress silent;
  Model& model = lora.model();
  write_model(
      scratch.path() / "model", model.exported_parameters(),
      [&](const auto& folder) { model.write_exported_description(folder); }, lora.world(), silent);
  write_adapter_config(scratch.path(), recipe.tune.lora, model.parameters(), "base");
  write_tensors(scratch.path() / "adapter_model.safetensors", model.parameters(), lora.world(),
                silent);
  Tensors first = copies_of(plain.model().parameters());
  read_model(scratch.path() / "model", plain.model().parameters(), plain.world());
  EXPECT_EQ(plain.loss(), lora.loss());
  for (const Parameter& parameter : plain.model().parameters()) {
    const bool is_adapted = parameter.is_expert || parameter.name.find("attn") != std::string::npos;
    EXPECT_EQ(at::equal(parameter.value, first.at(parameter.name)), !is_adapted) << parameter.name;
  }
  const models::Checkpoint adapters(scratch.path() / "adapter_model.safetensors");
  const models::Tensor* a =
      adapters.find("base_model.model.model.layers.1.block_sparse_moe.experts.2.w1.lora_A.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape(), (std::vector<std::int64_t>{3, 16}));
  const Json config = read_json_file(scratch.path() / "adapter_config.json");
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["target_modules"].size(), 7U);  // w1 w2 w3, q k v o
}

TEST(Lora, RefusesLayoutsThatCutMatrices) {
  Recipe recipe = tiny_recipe(TuneMode::kLora);
  recipe.layout.data = 2;
  recipe.layout.expert_shard = 2;
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::Communicator& world) {
                                 parallel::Groups groups(world, layout_of(recipe));
                                 make_decoder_model(recipe, groups, {}, {});
                               }),
               Error);
}

TEST(Lora, RanksLearnWhatOneProcessLearns) {
  const Recipe alone_recipe = tiny_recipe(TuneMode::kLora);
  Tuning alone(alone_recipe);
  alone.step(0);
  Recipe recipe = alone_recipe;
  recipe.layout.data = 2;
  recipe.layout.expert = 2;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    at::set_num_threads(1);
    parallel::Groups groups(world, layout_of(recipe));
    const auto model = make_decoder_model(recipe, groups, {}, {});
    AdamW optimizer(model->parameters(), recipe.optimizer);
    model->zero_gradients();
    model->forward_backward(input_of({world.rank(), 2}, 0));
    model->sum_gradients();
    EXPECT_NEAR(global_gradient_norm(model->parameters(), world), alone.norm, 1e-10 * alone.norm);
  });
}

TEST(Tune, ReadsItsRecipeStrictly) {
  Recipe recipe = tiny_recipe(TuneMode::kLora);
  recipe.tune.placement = "p.json";
  recipe.tune.pruning = "q.json";
  const Json json = to_json(recipe.tune);
  EXPECT_EQ(read_tune_recipe(JsonReader(json, "test")), recipe.tune);
  Json wrong = json;
  wrong["placement"] = "";
  EXPECT_THROW(read_tune_recipe(JsonReader(wrong, "test")), Error);
  wrong = json;
  wrong["mode"] = "half";
  EXPECT_THROW(read_tune_recipe(JsonReader(wrong, "test")), Error);
  EXPECT_THROW(tune_mode_of("half"), Error);
}

}  // namespace
}  // namespace coterie::training
