// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/nn.hpp"

namespace coterie::nn {
namespace {

MoELayerOptions options_of(ExpertKind kind, at::ScalarType type) {
  MoELayerOptions options;
  options.hidden = 24;
  options.intermediate = 16;
  options.num_experts = 6;
  options.expert_kind = kind;
  options.expert_bias = kind != ExpertKind::kSwiGlu;
  options.type = type;
  options.initializer_range = 0.3;
  return options;
}

/// Sums of one back end and the gradients of rows, weights and parameters.
std::vector<at::Tensor> run(ExpertBackend backend, Experts& experts, const at::Tensor& ids) {
  const auto type = experts->up.scalar_type();
  at::manual_seed(5);
  at::Tensor rows = at::randn({ids.size(0), 24}, at::kDouble).to(type).requires_grad_(true);
  at::Tensor weights = at::rand(ids.sizes(), at::kDouble)
                           .to(type == at::kDouble ? at::kDouble : at::kFloat)
                           .requires_grad_(true);
  const at::Tensor y = compute_experts(backend, *experts, rows, ids, weights);
  std::vector<at::Tensor> inputs{rows, weights};
  for (const at::Tensor& parameter : experts->parameters()) {
    inputs.push_back(parameter);
  }
  std::vector<at::Tensor> found = torch::autograd::grad(
      {y}, inputs, {at::randn(y.sizes(), at::kDouble).to(type)}, {}, false, true);
  found.push_back(y);
  return found;
}

void expect_equal(ExpertKind kind, at::ScalarType type, double limit) {
  Experts experts(options_of(kind, type), std::vector<std::int32_t>{0, 2, 3, 5});
  for (const at::Tensor& parameter : experts->parameters()) {
    at::NoGradGuard no_grad;
    parameter.add_(at::randn(parameter.sizes(), at::kDouble).to(type) * 0.1);  // biases, too
  }
  const at::Tensor ids =  // one expert without rows (3), one not held (4), one pick of none
      at::tensor({0, 2, 5, 0, 4, -1, 2, 5, 0, 5, 2, 4}, at::kInt).reshape({6, 2});
  const auto wanted = run(ExpertBackend::kLoop, experts, ids);
  const auto got = run(ExpertBackend::kGroupedMm, experts, ids);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined()) << name_of(kind) << " " << i;
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes());
    const double size = wanted[i].to(at::kDouble).norm().item<double>();
    const double error = (got[i].to(at::kDouble) - wanted[i].to(at::kDouble)).norm().item<double>();
    EXPECT_GT(size, 0.0) << name_of(kind) << " " << i;
    EXPECT_LE(error, limit * size) << name_of(kind) << " " << i;
  }
}

TEST(ExpertBackend, GroupedMmIsTheLoopWithItsGradients) {
  for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGelu, ExpertKind::kGeluTanh}) {
    expect_equal(kind, at::kDouble, 1e-13);
    expect_equal(kind, at::kBFloat16, 1e-2);  // torch's _grouped_mm
  }
}

TEST(ExpertBackend, NoRowsAreNoError) {
  Experts experts(options_of(ExpertKind::kSwiGlu, at::kBFloat16), std::vector<std::int32_t>{0, 1});
  const at::Tensor ids = at::full({3, 2}, -1, at::kInt);
  const at::Tensor y = compute_experts(ExpertBackend::kGroupedMm, *experts,
                                       at::ones({3, 24}, at::kBFloat16), ids, at::ones({3, 2}));
  EXPECT_EQ(y.abs().max().item<float>(), 0.0F);
}

TEST(ExpertBackend, NamesAndRefusals) {
  EXPECT_EQ(parse_expert_backend("grouped_mm", "back end"), ExpertBackend::kGroupedMm);
  EXPECT_EQ(parse_expert_backend(name_of(ExpertBackend::kLoop), "back end"), ExpertBackend::kLoop);
  try {
    parse_expert_backend("cutlass", "back end");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("back end is \"cutlass\""), std::string::npos);
  }
  Experts experts(options_of(ExpertKind::kSwiGlu, at::kFloat), std::vector<std::int32_t>{0});
  EXPECT_THROW(compute_experts(ExpertBackend::kGroupedMm, *experts, at::ones({3, 24}),
                               at::zeros({2, 1}, at::kInt), at::ones({2, 1})),
               Error);
}

}  // namespace
}  // namespace coterie::nn
