// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "gate_case.hpp"

namespace coterie::gates {
namespace {

TEST(RouterLinear, GradientsEqualFiniteDifferences) {
  at::Tensor x = random_values({7, 5}, 1).requires_grad_(true);
  at::Tensor w = random_values({4, 5}, 2).requires_grad_(true);
  const double error = gradient_error(
      {x, w}, [&] { return dot_with_fixed(router_linear(x, w, "gate").square(), 3); });
  EXPECT_LT(error, 1e-8);
}

TEST(RouterLinear, GivesOnlyTheGradientsThatAreWanted) {
  for (const bool of_x : {true, false}) {
    at::Tensor x = random_values({3, 5}, 1).requires_grad_(of_x);
    at::Tensor w = random_values({4, 5}, 2).requires_grad_(!of_x);
    router_linear(x, w, "gate").sum().backward();
    EXPECT_EQ(x.grad().defined(), of_x);
    EXPECT_EQ(w.grad().defined(), !of_x);
  }
}

TEST(RouterLinear, KeepsFp32OfBf16Tokens) {
  at::Tensor x = random_values({33, 300}, 1).to(at::kBFloat16).requires_grad_(true);
  at::Tensor w = random_values({16, 300}, 2).to(at::kFloat).requires_grad_(true);
  const at::Tensor y = router_linear(x, w, "gate");
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  const at::Tensor exact = at::mm(x.detach().to(at::kDouble), w.detach().to(at::kDouble).t());
  EXPECT_LT(max_difference(y.detach().to(at::kDouble), exact), 1e-3);
  dot_with_fixed(y.to(at::kDouble), 3).backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(RouterLinear, ARowsBitsDependOnItAlone) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor x = random_values({33, 70}, 1).to(type);
    const at::Tensor w = random_values({9, 70}, 2).to(type == at::kDouble ? type : at::kFloat);
    const auto run = [&](std::int64_t begin, std::int64_t count) {
      at::Tensor rows = x.narrow(0, begin, count).clone().requires_grad_(true);
      const at::Tensor y = router_linear(rows, w, "gate");
      dot_with_fixed(random_values({33, 9}, 7).narrow(0, begin, count) * y, 8);
      (random_values({33, 9}, 7).to(y.scalar_type()).narrow(0, begin, count) * y).sum().backward();
      return std::pair{y.detach(), rows.grad()};
    };
    const auto [all, all_gradients] = run(0, 33);
    for (const std::int64_t count : {1, 8, 9}) {
      const auto [some, gradients] = run(5, count);
      EXPECT_TRUE(bit_equal(some, all.narrow(0, 5, count)));
      EXPECT_TRUE(bit_equal(gradients, all_gradients.narrow(0, 5, count)));
    }
  }
}

TEST(RouterLinear, RefusesNarrowWeights) {
  const at::Tensor x = random_values({3, 5}, 1);
  EXPECT_THROW(router_linear(x, x.to(at::kBFloat16), "layer 1"), Error);
  EXPECT_THROW(router_linear(x, x.to(at::kFloat), "layer 1"), Error);
  EXPECT_THROW(router_linear(x, random_values({3, 4}, 1), "layer 1"), Error);
}

}  // namespace
}  // namespace coterie::gates
