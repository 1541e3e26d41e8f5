// SPDX-License-Identifier: Apache-2.0
// The reference's gradients against central differences of its own forward, in fp64: the one test
// that does not take any formula on trust.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coterie/run/kernels/experts.hpp"
#include "coterie/run/kernels/experts_backward.hpp"
#include "coterie/run/kernels/linear.hpp"
#include "coterie/run/kernels/rows.hpp"
#include "coterie/run/kernels/weight_gradient.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {
namespace {

constexpr DType kF64 = DType::kFloat64;
constexpr Execution kReference{nullptr, Backend::kReference};
constexpr double kStep = 1e-5;

std::vector<ConstMatrixView> const_views(const std::vector<TypedMatrix>& matrices) {
  std::vector<ConstMatrixView> views;
  for (const TypedMatrix& matrix : matrices) {
    views.push_back(matrix.view());
  }
  return views;
}

/// Three experts of one kind over two tokens: loss = sum over tokens and columns of
/// loss_weight * sum over the token's rows of routing weight * expert(x).
struct Layer {
  static constexpr std::int64_t kHidden = 5, kInner = 3, kTokens = 4;
  Activation activation;
  std::int64_t pre_columns;
  std::vector<std::int64_t> offsets = {0, 3, 3, 6};          // the second expert is idle
  std::vector<std::int32_t> token_of = {0, 2, 3, 1, -1, 2};  // one row is none
  TypedMatrix x{kTokens, kHidden, kF64, 1};
  TypedMatrix weights{6, 1, kF64};
  TypedMatrix loss_weights{kTokens, kHidden, kF64, 2};
  std::vector<TypedMatrix> up, down, up_bias, down_bias;

  Layer(Activation kind, Random& random)
      : activation(kind), pre_columns(kInner * pre_activations_per_hidden(kind)) {
    x.fill_normal(random);
    weights.fill_normal(random);
    loss_weights.fill_normal(random);
    for (int e = 0; e < 3; ++e) {
      up.emplace_back(pre_columns, kHidden, kF64, 1).fill_normal(random, 0.7);
      down.emplace_back(kHidden, kInner, kF64).fill_normal(random, 0.7);
      up_bias.emplace_back(1, pre_columns, kF64).fill_normal(random, 0.5);
      down_bias.emplace_back(1, kHidden, kF64).fill_normal(random, 0.5);
    }
  }

  TypedMatrix rows(TypedMatrix* pre) const {
    TypedMatrix hidden(6, kInner, kF64), out(6, kHidden, kF64);
    const auto up_views = const_views(up), down_views = const_views(down);
    const auto up_biases = const_views(up_bias), down_biases = const_views(down_bias);
    grouped_up({x.view(), token_of, offsets, up_views, hidden.view(), activation, up_biases,
                pre != nullptr ? pre->view() : MatrixView{}},
               kReference);
    grouped_down({hidden.view(), offsets, down_views, out.view(), down_biases}, kReference);
    return out;
  }

  [[nodiscard]] double loss() const {
    const TypedMatrix out = rows(nullptr);
    double sum = 0.0;
    for (std::int64_t r = 0; r < 6; ++r) {
      const std::int32_t token = token_of[static_cast<std::size_t>(r)];
      for (std::int64_t h = 0; token >= 0 && h < kHidden; ++h) {
        sum += weights.at(r, 0) * out.at(r, h) * loss_weights.at(token, h);
      }
    }
    return sum;
  }

  /// Every element of `gradient` against the slope of the loss when `parameter` moves.
  void expect_slopes(TypedMatrix& parameter, const TypedMatrix& gradient, const std::string& name) {
    for (std::int64_t r = 0; r < parameter.rows(); ++r) {
      for (std::int64_t c = 0; c < parameter.columns(); ++c) {
        const double value = parameter.at(r, c);
        parameter.set(r, c, value + kStep);
        const double above = loss();
        parameter.set(r, c, value - kStep);
        const double below = loss();
        parameter.set(r, c, value);
        EXPECT_NEAR(gradient.at(r, c), (above - below) / (2 * kStep), 2e-8)
            << name << "[" << r << ", " << c << "] of " << name_of(activation);
      }
    }
  }
};

std::vector<MatrixView> views(std::vector<TypedMatrix>& matrices) {
  std::vector<MatrixView> all;
  for (TypedMatrix& matrix : matrices) {
    all.push_back(matrix.view());
  }
  return all;
}

std::vector<TypedMatrix> poisoned_like(const std::vector<TypedMatrix>& matrices) {
  std::vector<TypedMatrix> all;
  for (const TypedMatrix& matrix : matrices) {
    all.emplace_back(matrix.rows(), matrix.columns(), kF64, 1).poison();
  }
  return all;
}

class ExpertGradients : public testing::TestWithParam<Activation> {};
INSTANTIATE_TEST_SUITE_P(Activations, ExpertGradients,
                         testing::Values(Activation::kSwiGlu, Activation::kGelu,
                                         Activation::kGeluTanh),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(ExpertGradients, OfTheReferenceAreTheSlopesOfItsForward) {
  Random random(31);
  Layer layer(GetParam(), random);
  TypedMatrix pre(6, layer.pre_columns, kF64), grad_pre(6, layer.pre_columns, kF64),
      hidden(6, Layer::kInner, kF64), grad_weights(6, 1, kF64), grad_rows(6, Layer::kHidden, kF64),
      grad_x(Layer::kTokens, Layer::kHidden, kF64);
  const TypedMatrix out = layer.rows(&pre);
  const auto up_views = const_views(layer.up), down_views = const_views(layer.down);
  const auto down_biases = const_views(layer.down_bias);
  GroupedDownBackward down;
  down.grad_rows = std::as_const(layer.loss_weights).view();
  down.row_of = layer.token_of;
  down.weights = std::as_const(layer.weights).view();
  down.expert_offsets = layer.offsets;
  down.down = down_views;
  down.bias = down_biases;
  down.pre = pre.view();
  down.activation = layer.activation;
  down.grad_pre = grad_pre.view();
  down.hidden = hidden.view();
  down.grad_weights = grad_weights.view();
  grouped_down_backward(down, kReference);
  grouped_up_backward({grad_pre.view(), layer.offsets, up_views, grad_rows.view()}, kReference);
  auto grad_up = poisoned_like(layer.up), grad_down = poisoned_like(layer.down);
  auto grad_up_bias = poisoned_like(layer.up_bias), grad_down_bias = poisoned_like(layer.down_bias);
  const auto up_out = views(grad_up), down_out = views(grad_down);
  const auto up_bias_out = views(grad_up_bias), down_bias_out = views(grad_down_bias);
  grouped_weight_gradient(
      {grad_pre.view(), {}, layer.x.view(), layer.token_of, layer.offsets, up_out}, kReference);
  grouped_weight_gradient(
      {layer.loss_weights.view(), layer.token_of, hidden.view(), {}, layer.offsets, down_out},
      kReference);
  grouped_bias_gradient({grad_pre.view(), {}, {}, layer.offsets, up_bias_out}, kReference);
  grouped_bias_gradient({layer.loss_weights.view(), layer.token_of, layer.weights.view(),
                         layer.offsets, down_bias_out},
                        kReference);
  const std::vector<std::int32_t> of_token = {0, -1, 3, -1, 1, 5, 2, -1};  // rows of each token
  merge_rows(grad_rows.view(), {of_token, {}, {}, {}}, grad_x.view(), false, kReference);

  layer.expect_slopes(layer.x, grad_x, "x");
  layer.expect_slopes(layer.weights, grad_weights, "weights");
  for (std::size_t e = 0; e < 3; ++e) {
    layer.expect_slopes(layer.up[e], grad_up[e], "up");
    layer.expect_slopes(layer.down[e], grad_down[e], "down");
    layer.expect_slopes(layer.up_bias[e], grad_up_bias[e], "up_bias");
    layer.expect_slopes(layer.down_bias[e], grad_down_bias[e], "down_bias");
  }
  TypedMatrix dots(6, 1, kF64);
  dot_rows(layer.loss_weights.view(), out.view(), {layer.token_of, {}}, dots.view(), kReference);
  for (std::int64_t r = 0; r < 6; ++r) {
    EXPECT_NEAR(dots.at(r, 0), grad_weights.at(r, 0), 1e-14) << "two ways to one gradient";
  }
}

TEST(LinearGradients, OfTheReferenceAreTheSlopesOfItsForward) {
  Random random(32);
  TypedMatrix x(3, 4, kF64, 1), w(5, 4, kF64, 2), grad_y(3, 5, kF64, 1), y(3, 5, kF64);
  for (TypedMatrix* matrix : {&x, &w, &grad_y}) {
    matrix->fill_normal(random);
  }
  TypedMatrix grad_x(3, 4, kF64), grad_w(5, 4, kF64), grad_bias(1, 5, kF64);
  linear_backward(
      {x.view(), w.view(), grad_y.view(), grad_x.view(), grad_w.view(), grad_bias.view(), false},
      kReference);
  const auto loss = [&] {
    linear(x.view(), w.view(), y.view(), kReference);
    double sum = 0.0;
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 5; ++c) {
        sum += y.at(r, c) * grad_y.at(r, c);
      }
    }
    return sum;
  };
  for (auto [parameter, gradient] : {std::pair{&x, &grad_x}, std::pair{&w, &grad_w}}) {
    for (std::int64_t r = 0; r < parameter->rows(); ++r) {
      for (std::int64_t c = 0; c < parameter->columns(); ++c) {
        const double value = parameter->at(r, c);
        parameter->set(r, c, value + kStep);
        const double above = loss();
        parameter->set(r, c, value - kStep);
        const double below = loss();
        parameter->set(r, c, value);
        EXPECT_NEAR(gradient->at(r, c), (above - below) / (2 * kStep), 1e-8);
      }
    }
  }
  for (std::int64_t c = 0; c < 5; ++c) {
    EXPECT_DOUBLE_EQ(grad_bias.at(0, c), grad_y.at(0, c) + grad_y.at(1, c) + grad_y.at(2, c));
  }
}

}  // namespace
}  // namespace coterie::kernels
