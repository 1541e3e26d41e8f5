// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/weights.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/models/scratch_folder.hpp"
#include "tests/models/tiny_model.hpp"

namespace coterie::models {
namespace {

std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

TEST(Weights, ADeviceReadsItsOwnExpertsUnderTheirGlobalNumbers) {
  TinyModel sizes;
  sizes.num_experts = 60;
  sizes.num_layers = 1;
  const ScratchFolder folder;
  write_tiny_model(folder.path(), sizes);
  const Checkpoint checkpoint(folder.path());
  const ModelConfig config = read_model_config(folder.path());
  const Family& family = family_named(config.family, "test");
  const Weights weights =
      load_weights(checkpoint, config, family, {range(30, 60)}, kernels::DType::kFloat32);
  for (std::size_t e = 0; e < 60; ++e) {
    const LayerWeights& layer = weights.layers[0];
    ASSERT_EQ(layer.gate_up[e].defined(), e >= 30) << e;
    ASSERT_EQ(layer.down[e].defined(), e >= 30) << e;
    if (e < 30) {
      continue;
    }
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    const auto same = [&](const at::Tensor& found, const std::string& tensor) {
      const auto bytes = checkpoint.find(name + tensor)->bytes();
      return found.nbytes() == bytes.size() &&
             std::memcmp(found.const_data_ptr(), bytes.data(), bytes.size()) == 0;
    };
    EXPECT_TRUE(same(layer.gate_up[e].slice(0, 0, sizes.intermediate), "gate_proj.weight")) << e;
    EXPECT_TRUE(same(layer.gate_up[e].slice(0, sizes.intermediate), "up_proj.weight")) << e;
    EXPECT_TRUE(same(layer.down[e], "down_proj.weight")) << e;
  }
}

TEST(Weights, WhatTheFileHoldsInTheWantedTypeIsNotCopied) {
  const ScratchFolder folder;
  write_tiny_model(folder.path(), {});
  const Checkpoint checkpoint(folder.path());
  const ModelConfig config = read_model_config(folder.path());
  const Family& family = family_named(config.family, "test");
  const LocalExperts all(3, range(0, 8));
  const auto data = [&](const char* name) { return checkpoint.find(name)->bytes().data(); };
  const char* const query = "model.layers.0.self_attn.q_proj.weight";
  const Weights fp32 = load_weights(checkpoint, config, family, all, kernels::DType::kFloat32);
  EXPECT_EQ(fp32.layers[0].query.const_data_ptr(), static_cast<const void*>(data(query)));
  EXPECT_EQ(fp32.layers[0].down[3].const_data_ptr(),
            static_cast<const void*>(data("model.layers.0.mlp.experts.3.down_proj.weight")));
  const Weights bf16 = load_weights(checkpoint, config, family, all, kernels::DType::kBfloat16);
  EXPECT_EQ(bf16.layers[0].query.scalar_type(), at::kBFloat16);
  EXPECT_EQ(bf16.layers[0].gate_up[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(bf16.layers[0].router.scalar_type(), at::kFloat);  // never rounded
  EXPECT_EQ(bf16.layers[0].moe_norm.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace coterie::models
