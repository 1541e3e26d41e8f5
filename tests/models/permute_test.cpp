// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/permute.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "coterie/base/json.hpp"
#include "coterie/models/expert_names.hpp"
#include "tests/folders.hpp"
#include "tests/models/random_models.hpp"
#include "tests/models/scratch_folder.hpp"
#include "tests/models/tiny_model.hpp"

namespace coterie::models {
namespace {

/// Experts dealt out at random, ascending on each device, another deal in each layer.
placement::Placement random_placement(const ModelConfig& config, std::int32_t num_devices,
                                      std::uint64_t seed) {
  placement::Placement placement = placement::contiguous_placement_of(
      config.moe_layers, static_cast<std::int32_t>(config.num_experts), num_devices);
  for (placement::PlacedLayer& placed : placement.layers) {
    std::vector<std::int32_t> experts = placed.placement.physical_to_logical();
    Random(seed, static_cast<std::uint64_t>(placed.layer)).shuffle(std::span(experts));
    std::size_t next = 0;
    for (auto& device : placed.placement.experts_of_device) {
      for (std::int32_t& expert : device) {
        expert = experts[next++];
      }
      std::ranges::sort(device);
    }
  }
  return placement;
}

double largest_difference(const Matrix<float>& a, const Matrix<float>& b) {
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    difference = std::max(difference, std::abs(double{a.values()[i]} - b.values()[i]));
    largest = std::max(largest, std::abs(double{a.values()[i]}));
  }
  return difference / largest;
}

std::vector<std::vector<std::int32_t>> some_tokens() {
  std::vector<std::vector<std::int32_t>> batch = {{}, {}};
  Random random(3);
  for (int i = 0; i < 90; ++i) {
    batch[i % 3 == 0 ? 0 : 1].push_back(static_cast<std::int32_t>(random.below(61)));
  }
  return batch;
}

class Permute : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(model_.path(), {});
    config_ = read_model_config(model_.path());
  }

  ScratchFolder model_;
  ScratchFolder parent_;
  ModelConfig config_;
};

TEST_F(Permute, LinearPlacementOfTheResultIsThePlacement) {
  const placement::Placement placement = random_placement(config_, 4, 11);
  write_text_file(model_ / "tokenizer.json", "{}");
  const auto out = parent_ / "out";
  permute_checkpoint(model_.path(), placement, out);
  DecoderOptions placed;
  placed.placement = placement;
  DecoderOptions linear;
  linear.placement = placement::contiguous_placement_of(config_.moe_layers, 8, 4);
  std::vector<std::vector<std::int32_t>> chosen;
  const auto batch = some_tokens();
  const Matrix<float> before =
      Decoder(model_.path(), placed).logits(batch, [&](const LayerRouting& routing) {
        const auto new_of_old = [&] {
          const auto old_of_new = placement.find(routing.layer)->physical_to_logical();
          std::vector<std::int32_t> inverse(old_of_new.size());
          for (std::size_t j = 0; j < old_of_new.size(); ++j) {
            inverse[static_cast<std::size_t>(old_of_new[j])] = static_cast<std::int32_t>(j);
          }
          return inverse;
        }();
        chosen.emplace_back();
        for (const std::int32_t id : routing.ids) {
          chosen.back().push_back(new_of_old[static_cast<std::size_t>(id)]);
        }
      });
  const Matrix<float> after = Decoder(out, linear).logits(batch, [&](const LayerRouting& routing) {
    EXPECT_TRUE(std::ranges::equal(routing.ids, chosen[static_cast<std::size_t>(routing.layer)]))
        << "layer " << routing.layer;
  });
  EXPECT_LE(largest_difference(before, after), 1e-6);
  EXPECT_EQ(read_text_file(out / "config.json"), read_text_file(model_ / "config.json"));
  EXPECT_EQ(read_text_file(out / "tokenizer.json"), "{}");
  const Json note = read_json_file(out / kPermutationName);
  EXPECT_EQ(note["source_fingerprint"], Decoder(model_.path()).fingerprint());
  EXPECT_NE(Decoder(out).fingerprint(), Decoder(model_.path()).fingerprint());
}

TEST_F(Permute, SmallPerExpertTensorsMoveAlong) {
  std::vector<OutgoingTensor> tensors = tiny_tensors({});
  for (int e = 0; e < 8; ++e) {
    tensors.push_back(
        counted("model.layers.1.mlp.experts." + std::to_string(e) + ".down_proj.weight_scale",
                ElementType::kF32, {}, 10 * e));
  }
  tensors.push_back(
      counted("model.layers.1.mlp.gate.e_score_correction_bias", ElementType::kF32, {8}, 3));
  tensors.push_back(
      counted("model.layers.2.mlp.experts.gate_up_proj_bias", ElementType::kBF16, {8, 5}, 4));
  tensors.push_back(
      counted("model.layers.2.mlp.shared_experts.3.weight", ElementType::kF32, {8}, 5));
  write_checkpoint(model_.path(), tensors);
  const placement::Placement placement = random_placement(config_, 2, 5);
  const auto out = parent_ / "out";
  permute_checkpoint(model_.path(), placement, out);
  const Checkpoint before(model_.path());
  const Checkpoint after(out);
  const auto bytes = [](const Checkpoint& from, const std::string& name, std::size_t part,
                        std::size_t parts) {
    const auto all = from.find(name)->bytes();
    return std::vector(all.begin() + static_cast<std::ptrdiff_t>(all.size() / parts * part),
                       all.begin() + static_cast<std::ptrdiff_t>(all.size() / parts * (part + 1)));
  };
  const auto order1 = placement.find(1)->physical_to_logical();
  const auto order2 = placement.find(2)->physical_to_logical();
  EXPECT_FALSE(std::ranges::is_sorted(order1) || std::ranges::is_sorted(order2));
  const std::string scale = "model.layers.1.mlp.experts.";
  for (std::size_t j = 0; j < 8; ++j) {
    const auto old1 = static_cast<std::size_t>(order1[j]);
    const auto old2 = static_cast<std::size_t>(order2[j]);
    EXPECT_EQ(bytes(after, scale + std::to_string(j) + ".down_proj.weight_scale", 0, 1),
              bytes(before, scale + std::to_string(old1) + ".down_proj.weight_scale", 0, 1));
    for (const char* name :
         {"model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.gate.weight"}) {
      EXPECT_EQ(bytes(after, name, j, 8), bytes(before, name, old1, 8)) << name;
    }
    const std::string fused = "model.layers.2.mlp.experts.gate_up_proj_bias";
    EXPECT_EQ(bytes(after, fused, j, 8), bytes(before, fused, old2, 8));
  }
  EXPECT_EQ(bytes(after, "model.layers.2.mlp.shared_experts.3.weight", 0, 1),
            bytes(before, "model.layers.2.mlp.shared_experts.3.weight", 0, 1));
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
}

TEST_F(Permute, WhatCannotBePermutedIsRefusedAndNothingIsWritten) {
  const auto refuse = [&](const placement::Placement& placement, const std::string& part) {
    const auto [code, message] =
        refusal_of([&] { permute_checkpoint(model_.path(), placement, parent_ / "out"); });
    EXPECT_EQ(code, ErrorCode::kBadInput) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_TRUE(std::filesystem::is_empty(parent_.path()));
  };
  placement::Placement replicas = random_placement(config_, 4, 1);
  auto& devices = replicas.layers[1].placement.experts_of_device;
  devices[0].push_back(devices[1][0]);
  std::ranges::sort(devices[0]);
  refuse(replicas, "layer 1: the placement has 1 replicas");
  placement::Placement uneven = random_placement(config_, 3, 1);
  refuse(uneven, "equally many");
  placement::Placement other = random_placement(config_, 4, 1);
  other.model_fingerprint = "00112233445566ff";
  refuse(other, "00112233445566ff");
}

TEST_F(Permute, AnOccupiedPlaceIsLeftAlone) {
  const placement::Placement placement = random_placement(config_, 4, 1);
  EXPECT_EQ(refusal_of([&] { permute_checkpoint(model_.path(), placement, model_.path()); }).first,
            ErrorCode::kBadInput);
  write_text_file(parent_ / "file", "mine");
  EXPECT_EQ(
      refusal_of([&] { permute_checkpoint(model_.path(), placement, parent_ / "file"); }).first,
      ErrorCode::kBadInput);
  EXPECT_EQ(read_text_file(parent_ / "file"), "mine");
  EXPECT_EQ(refusal_of([&] {
              permute_checkpoint(model_.path(), placement, parent_ / "no" / "such" / "folder");
            }).first,
            ErrorCode::kIo);
  std::filesystem::create_directory(parent_ / "empty");
  EXPECT_NO_THROW(permute_checkpoint(model_.path(), placement, parent_ / "empty"));
}

TEST_F(Permute, WeightsInOtherFormatsAreLeftOutWithAWarning) {
  class Warnings final : public Progress {
   public:
    void begin(std::string_view, std::int64_t) override {}
    void update(std::int64_t) override {}
    void end() override {}
    void warn(std::string_view message) override { text += message; }
    std::string text;
  } warnings;
  write_text_file(model_ / "pytorch_model.bin", "old order");
  permute_checkpoint(model_.path(), random_placement(config_, 4, 1), parent_ / "out", warnings);
  EXPECT_FALSE(std::filesystem::exists(parent_ / "out" / "pytorch_model.bin"));
  EXPECT_NE(warnings.text.find("pytorch_model.bin"), std::string::npos);
}

TEST(ExpertNames, PartsAreTold) {
  const auto one = parse_expert_name("model.layers.3.mlp.experts.17.up_proj.weight", "olmoe");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->layer, 3);
  EXPECT_EQ(one->expert, 17);
  EXPECT_EQ(one->with_expert(4), "model.layers.3.mlp.experts.4.up_proj.weight");
  EXPECT_EQ(parse_expert_name("model.layers.3.mlp.experts.gate_up_proj", "olmoe")->expert, -1);
  EXPECT_EQ(parse_expert_name("model.layers.12.block_sparse_moe.gate.weight", "mixtral")->layer,
            12);
  for (const char* other : {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight",
                            "model.layers.1.mlp.gate_proj.weight",
                            "model.layers.1.mlp.shared_experts.2.weight", "model.layers.x.y"}) {
    EXPECT_FALSE(parse_expert_name(other, "olmoe").has_value()) << other;
  }
}

/// Permuted copies of transformers' random models, for check_permuted_models.py.
TEST(PermuteRandomModels, AreWrittenForTransformersToCheck) {
  if (!std::filesystem::exists(random_models_folder() / "done")) {
    GTEST_SKIP() << "no models of transformers in " << random_models_folder();
  }
  const auto out = tests::binary_dir() / "permuted_models";
  std::filesystem::remove_all(out);
  std::filesystem::create_directories(out);
  for (const char* name :
       {"olmoe_seed0", "olmoe_norm_gqa", "olmoe_sharded", "olmoe_bf16", "mixtral_seed0",
        "mixtral_head_dim", "qwen2_seed0", "qwen3_seed0", "deepseek_v2_lite", "glm4_seed0"}) {
    const auto model = random_models_folder() / name;
    const ModelConfig config = read_model_config(model);
    permute_checkpoint(model, random_placement(config, 3, 77), out / name);
  }
}

}  // namespace
}  // namespace coterie::models
