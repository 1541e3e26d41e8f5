// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/nn.hpp"

namespace coterie::nn {
namespace {

MoELayerOptions toy_options(ExpertKind kind) {
  MoELayerOptions options;
  options.name = "layer 3";
  options.hidden = 6;
  options.intermediate = 4;
  options.num_experts = 5;
  options.expert_kind = kind;
  options.expert_bias = kind == ExpertKind::kGelu || kind == ExpertKind::kGeluTanh;
  options.path = LayerPath::kReference;
  options.type = at::kDouble;
  options.initializer_range = 0.5;
  gates::GateOptions gate;
  gate.hidden = 6;
  gate.num_experts = 5;
  gate.top_k = 2;
  gate.type = gates::RouterType::kFloat64;
  gate.initializer_range = 0.5;
  options.gate = gates::make_gate(gate);
  return options;
}

/// A token by itself: the formula written down once more.
at::Tensor by_hand(MoELayer& layer, const at::Tensor& x) {
  const at::Tensor probabilities =
      at::softmax(at::linear(x, layer->named_parameters()["gate.weight"]), 1);
  const auto top = probabilities.topk(2, 1);
  const auto parameters = layer->named_parameters();
  std::vector<at::Tensor> y;
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor sum = at::zeros({x.size(1)}, x.options());
    for (std::int64_t i = 0; i < 2; ++i) {
      const auto e = std::get<1>(top)[t][i].item<std::int64_t>();
      const at::Tensor pre = at::mv(parameters["experts.gate_up_proj"][e], x[t]);
      const at::Tensor hidden = at::silu(pre.slice(0, 0, 4)) * pre.slice(0, 4, 8);
      sum = sum + std::get<0>(top)[t][i] * at::mv(parameters["experts.down_proj"][e], hidden);
    }
    y.push_back(sum);
  }
  return at::stack(y);
}

TEST(ReferencePath, IsTheFormulaWithItsGradients) {
  at::manual_seed(3);
  MoELayer layer(toy_options(ExpertKind::kSwiGlu));
  gates::TokenBatch batch;
  batch.x = at::randn({9, 6}, at::kDouble).requires_grad_(true);
  const MoEResult result = layer->forward(batch);
  const at::Tensor wanted = by_hand(layer, batch.x);
  EXPECT_LT((result.y - wanted).abs().max().item<double>(), 1e-14);
  EXPECT_EQ(result.statistics.routing.num_tokens, 9);

  std::vector<at::Tensor> inputs = layer->parameters();
  inputs.push_back(batch.x);
  const at::Tensor direction = at::randn({9, 6}, at::kDouble);
  const auto got = torch::autograd::grad({result.y}, inputs, {direction});
  const auto hand = torch::autograd::grad({wanted}, inputs, {direction});
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT((got[i] - hand[i]).abs().max().item<double>(), 1e-13) << i;
  }
}

TEST(ReferencePath, NamesParametersAsHuggingFaceDoes) {
  MoELayer swiglu(toy_options(ExpertKind::kSwiGlu));
  EXPECT_EQ(swiglu->named_parameters().keys(),
            (std::vector<std::string>{"gate.weight", "experts.gate_up_proj", "experts.down_proj"}));
  MoELayer gelu(toy_options(ExpertKind::kGelu));
  EXPECT_EQ(gelu->named_parameters().keys(),
            (std::vector<std::string>{"gate.weight", "experts.up_proj", "experts.down_proj",
                                      "experts.up_bias", "experts.down_bias"}));
}

TEST(ReferencePath, TakesNoTokens) {
  MoELayer layer(toy_options(ExpertKind::kGeluTanh));
  gates::TokenBatch batch;
  batch.x = at::zeros({0, 6}, at::kDouble).requires_grad_(true);
  const MoEResult result = layer->forward(batch);
  EXPECT_EQ(result.y.sizes(), (std::vector<std::int64_t>{0, 6}));
  result.y.sum().backward();
  for (const auto& parameter : layer->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined() || parameter.key() == "gate.weight")
        << parameter.key();
  }
}

TEST(ReferencePath, RefusesWhatDoesNotFit) {
  MoELayerOptions options = toy_options(ExpertKind::kSwiGlu);
  options.num_experts = 6;
  EXPECT_THROW(MoELayer{options}, Error);
  options = toy_options(ExpertKind::kSwiGlu);
  options.expert_bias = true;
  EXPECT_THROW(MoELayer{options}, Error);
}

}  // namespace
}  // namespace coterie::nn
