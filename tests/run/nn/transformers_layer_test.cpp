// SPDX-License-Identifier: Apache-2.0
// Whole MoE modules of transformers, computed by tests/python/make_layer_cases.py: outputs and all
// gradients, on one process and over expert groups and shards. (Routing and balance losses:
// tests/run/gates/transformers_test.cpp.)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "coterie/models/models.hpp"
#include "coterie/run/nn/nn.hpp"
#include "tests/folders.hpp"

namespace coterie::nn {
namespace {

at::Tensor tensor_of(const models::SafetensorsFile& file, const std::string& name) {
  const models::TensorInfo& info = *file.find(name);
  at::Tensor tensor = at::empty(info.shape, at::kFloat);
  const auto bytes = file.bytes(info);
  std::copy_n(bytes.data(), bytes.size(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor;
}

MoELayerOptions options_of(const models::SafetensorsFile& file) {
  const Json json = parse_json(file.metadata().at("options"), file.path().string());
  const auto gate = gates::gate_options_from_json(JsonReader(json, file.path().string()));
  MoELayerOptions options;
  options.name = gate.name;
  options.hidden = gate.hidden;
  options.intermediate = std::stoll(file.metadata().at("intermediate"));
  options.num_experts = gate.num_experts;
  options.gate = gates::make_gate(gate);
  return options;
}

/// The rank's part of a stacked parameter: its experts, of an up projection's halves and of a down
/// projection's columns its shard.
at::Tensor part_of(const at::Tensor& whole, const Experts& experts, bool is_up) {
  const std::vector<std::int64_t> ids(experts->expert_ids().begin(), experts->expert_ids().end());
  const at::Tensor held = whole.index_select(0, at::tensor(ids, at::kLong));
  const auto shard = static_cast<std::size_t>(experts->shard());
  if (!is_up) {
    return held.chunk(experts->num_shards(), 2)[shard];
  }
  const auto halves = held.chunk(2, 1);
  return at::cat({halves[0].chunk(experts->num_shards(), 1)[shard],
                  halves[1].chunk(experts->num_shards(), 1)[shard]},
                 1);
}

void expect_close(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(found.sizes(), wanted.sizes()) << what;
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  EXPECT_LT((found - wanted).abs().max().item<double>(), 1e-5 * scale) << what;
}

/// One rank: tokens are shared out as evenly as can be.
void check_rank(const models::SafetensorsFile& file, comm::Communicator& world, int num_shards) {
  at::set_num_threads(1);
  MoELayerOptions options = options_of(file);
  const auto expert = world.split(world.rank() % num_shards);
  const auto shard = world.split(world.rank() / num_shards);
  if (world.size() > 1) {
    options.expert_group = expert.get();
    options.shard_group = shard.get();
  }
  MoELayer layer(options);
  {
    const at::NoGradGuard guard;
    layer->gate().named_parameters()["weight"].copy_(tensor_of(file, "gate.weight"));
    if (file.find("bias") != nullptr) {
      layer->gate().named_buffers()["e_score_correction_bias"].copy_(tensor_of(file, "bias"));
    }
    const Experts& experts = layer->experts();
    experts->up.copy_(part_of(tensor_of(file, "experts.gate_up_proj"), experts, true));
    experts->down.copy_(part_of(tensor_of(file, "experts.down_proj"), experts, false));
  }
  const at::Tensor x = tensor_of(file, "x");
  const std::int64_t begin = x.size(0) * world.rank() / world.size();
  const std::int64_t end = x.size(0) * (world.rank() + 1) / world.size();
  const auto mine = [&](const at::Tensor& all) { return all.slice(0, begin, end).contiguous(); };
  gates::TokenBatch batch;
  batch.x = mine(x).requires_grad_(true);
  const MoEResult result = layer->forward(batch);
  expect_close(result.y.detach(), mine(tensor_of(file, "y")), "y");
  const at::Tensor direction = at::sin(at::arange(x.numel(), at::kFloat)).view_as(x);
  (result.y * mine(direction)).sum().backward();
  expect_close(batch.x.grad(), mine(tensor_of(file, "grad.x")), "dL/dx");
  const Experts& experts = layer->experts();
  expect_close(experts->up.grad(),
               part_of(tensor_of(file, "grad.experts.gate_up_proj"), experts, true), "up");
  expect_close(experts->down.grad(),
               part_of(tensor_of(file, "grad.experts.down_proj"), experts, false), "down");
  if (world.size() == 1) {
    expect_close(layer->gate().named_parameters()["weight"].grad(),
                 tensor_of(file, "grad.gate.weight"), "router");
  }
}

TEST(TransformersLayer, OutputsAndGradientsAreThoseOfTheirModules) {
  const auto folder = tests::binary_dir() / "layer_cases";
  if (!std::filesystem::is_directory(folder)) {
    GTEST_SKIP() << "no cases from transformers";
  }
  int num_cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const models::SafetensorsFile file(entry.path());
    ++num_cases;
    for (const auto& [num_ranks, num_shards] : {std::pair{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
      SCOPED_TRACE(entry.path().stem().string() + ", " + std::to_string(num_ranks) + " ranks, " +
                   std::to_string(num_shards) + " shards");
      comm::run_ranks(
          num_ranks,
          [&, shards = num_shards](comm::Communicator& world) { check_rank(file, world, shards); },
          std::chrono::seconds(60));
    }
  }
  EXPECT_EQ(num_cases, 5);
}

}  // namespace
}  // namespace coterie::nn
