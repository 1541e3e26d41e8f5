// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "tests/run/kernels/on_device.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

/// The GPU twins of backward against the reference twins. Without a GPU, what they refuse is tested
/// alone.
namespace coterie::kernels {
namespace {

constexpr DType kType = DType::kBfloat16;
constexpr int kTokens = 150;
constexpr int kHidden = 136;
constexpr int kInner = 200;
constexpr int kExperts = 5;  // the last one without rows
constexpr int kTopK = 3;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(KernelsBackwardCuda, RefusalsNameArgumentAndValue) {
  alignas(16) std::uint16_t some[512] = {};
  const std::int32_t offsets[2] = {};
  cuda::GroupedDownBackward down;
  down.down = {some, 1, 16, 8};
  down.grad_y = {some, 1, 24, 24, kType};
  EXPECT_NE(message_of([&] { cuda::grouped_down_backward(down, {}, nullptr); }).find("24 columns"),
            std::string::npos);
  down.grad_y = {some, 1, 16, 16, kType};
  down.pre = {some, 4, 16, 16, kType};
  down.grad_pre = {some, 3, 16, 16, kType};
  EXPECT_NE(message_of([&] {
              cuda::grouped_down_backward(down, {}, nullptr);
            }).find("grad_pre has 3 rows, needs 4"),
            std::string::npos);
  cuda::GroupedWeightGradient weight;
  weight.a = {some, 4, 16, 16, kType};
  weight.b = {some, 4, 8, 8, kType};
  weight.expert_offsets = offsets;
  weight.gradient = {some, 2000, 16, 8, kType, false};
  EXPECT_NE(message_of([&] { cuda::grouped_weight_gradient(weight, {}, nullptr); }).find("is 2000"),
            std::string::npos);
  weight.gradient = {some, 1, 16, 8, DType::kFloat16, false};
  EXPECT_NE(message_of([&] { cuda::grouped_weight_gradient(weight, {}, nullptr); }).find("fp32"),
            std::string::npos);
  cuda::SumRowDots dots;
  dots.num_pairs = std::int64_t{1} << 31;
  EXPECT_NE(message_of([&] { cuda::sum_row_dots(dots, nullptr); }).find("num_pairs"),
            std::string::npos);
}

/// Rows of a layer sorted by expert.
struct Rows {
  std::vector<std::int32_t> offsets{0};
  std::vector<std::int64_t> wide_offsets{0};
  std::vector<std::int32_t> row_token;
  std::vector<float> row_weights;
};

Rows sorted_rows() {
  const std::vector<std::int32_t> ids = random_ids(kTokens, kTopK, kExperts - 1);
  Random random(9);
  Rows rows;
  for (int e = 0; e < kExperts; ++e) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == e) {
        rows.row_token.push_back(static_cast<std::int32_t>(i) / kTopK);
        rows.row_weights.push_back(static_cast<float>(random.uniform()));
      }
    }
    rows.offsets.push_back(static_cast<std::int32_t>(rows.row_token.size()));
    rows.wide_offsets.push_back(rows.offsets.back());
  }
  return rows;
}

/// Relative error of device rows against a reference matrix.
double error_of(const std::vector<std::uint16_t>& got, const TypedMatrix& want) {
  double error = 0.0;
  double size = 0.0;
  const ConstMatrixView view = want.view();
  for (std::int64_t r = 0; r < view.rows; ++r) {
    for (std::int64_t c = 0; c < view.columns; ++c) {
      const double value = from_bfloat16(got[static_cast<std::size_t>(r * view.columns + c)]);
      error += (value - want.at(r, c)) * (value - want.at(r, c));
      size += want.at(r, c) * want.at(r, c);
    }
  }
  return std::sqrt(error / size);  // NaN if anything is
}

std::vector<ConstMatrixView> matrices(const std::vector<std::uint16_t>& data, std::int64_t rows,
                                      std::int64_t columns) {
  std::vector<ConstMatrixView> views;
  for (int e = 0; e < kExperts; ++e) {
    views.emplace_back(data.data() + e * rows * columns, rows, columns, columns, kType);
  }
  return views;
}

std::vector<std::uint16_t> poison(std::int64_t count) {
  return std::vector<std::uint16_t>(static_cast<std::size_t>(count), 0xFFFF);
}

class BackwardOnGpu : public testing::TestWithParam<cuda::Path> {
 protected:
  [[nodiscard]] cuda::ProductOptions options() const {
    cuda::ProductOptions options;
    options.path = GetParam();
    return options;
  }
};

TEST_P(BackwardOnGpu, RowGradientsEqualReference) {
  NEEDS_GPU();
  const Rows rows = sorted_rows();
  const auto count = static_cast<std::int64_t>(rows.row_token.size());
  const auto grad_y = random_bf16(kTokens * kHidden, 1, 1.0);
  const auto pre = random_bf16(static_cast<std::size_t>(count) * 2 * kInner, 2, 1.5);
  const auto gate_up = random_bf16(kExperts * 2 * kInner * kHidden, 3, 0.05);
  const auto down = random_bf16(kExperts * kHidden * kInner, 4, 0.05);
  const ConstMatrixView pre_view{pre.data(), count, 2 * kInner, 2 * kInner, kType};
  TypedMatrix grad_pre(count, 2 * kInner, kType);
  TypedMatrix hidden(count, kInner, kType);
  TypedMatrix grad_weights(count, 1, DType::kFloat32);
  TypedMatrix grad_rows(count, kHidden, kType);
  const Execution reference{nullptr, Backend::kReference};
  const auto down_views = matrices(down, kHidden, kInner);
  const auto up_views = matrices(gate_up, 2 * kInner, kHidden);
  GroupedDownBackward want;
  want.grad_rows = {grad_y.data(), kTokens, kHidden, kHidden, kType};
  want.row_of = rows.row_token;
  want.weights = {rows.row_weights.data(), count, 1, 1, DType::kFloat32};
  want.expert_offsets = rows.wide_offsets;
  want.down = down_views;
  want.pre = pre_view;
  want.grad_pre = grad_pre.view();
  want.hidden = hidden.view();
  want.grad_weights = grad_weights.view();
  grouped_down_backward(want, reference);
  grouped_up_backward({pre_view, rows.wide_offsets, up_views, grad_rows.view()}, reference);

  OnDevice<std::int32_t> offsets(rows.offsets);
  OnDevice<std::int32_t> row_token(rows.row_token);
  OnDevice<float> row_weights(rows.row_weights);
  OnDevice<std::uint16_t> d_grad_y(grad_y);
  OnDevice<std::uint16_t> d_pre(pre);
  OnDevice<std::uint16_t> d_gate_up(gate_up);
  OnDevice<std::uint16_t> d_down(down);
  OnDevice<std::uint16_t> d_grad_pre(poison(count * 2 * kInner));
  OnDevice<std::uint16_t> d_hidden(poison(count * kInner));
  OnDevice<std::uint16_t> d_grad_rows(poison(count * kHidden));
  OnDevice<float> dots(std::vector<float>(static_cast<std::size_t>(count), std::nanf("")));
  cuda::GroupedDownBackward task;
  task.grad_y = {d_grad_y.data(), kTokens, kHidden, kHidden, kType};
  task.row_token = row_token.data();
  task.expert_offsets = offsets.data();
  task.row_weights = row_weights.data();
  task.down = {d_down.data(), kExperts, kHidden, kInner};
  task.pre = {d_pre.data(), count, 2 * kInner, 2 * kInner, kType};
  task.grad_pre = {d_grad_pre.data(), count, 2 * kInner, 2 * kInner, kType};
  task.hidden = {d_hidden.data(), count, kInner, kInner, kType};
  task.row_dots = dots.data();
  task.row_dots_stride = count;
  cuda::grouped_down_backward(task, options(), nullptr);
  cuda::grouped_up_backward({task.pre,
                             offsets.data(),
                             {d_gate_up.data(), kExperts, 2 * kInner, kHidden},
                             {d_grad_rows.data(), count, kHidden, kHidden, kType}},
                            options(), nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LE(error_of(d_grad_pre.host(), grad_pre), 6e-3);
  EXPECT_LE(error_of(d_hidden.host(), hidden), 6e-3);
  EXPECT_LE(error_of(d_grad_rows.host(), grad_rows), 6e-3);
  const std::vector<float> got = dots.host();
  double error = 0.0;
  double size = 0.0;
  for (std::int64_t r = 0; r < count; ++r) {
    const double want_dot = grad_weights.at(r, 0);
    error += std::pow(got[static_cast<std::size_t>(r)] - want_dot, 2);
    size += want_dot * want_dot;
  }
  EXPECT_LE(std::sqrt(error / size), 6e-3);
}

TEST_P(BackwardOnGpu, WeightGradientsEqualReference) {
  NEEDS_GPU();
  const Rows rows = sorted_rows();
  const auto count = static_cast<std::int64_t>(rows.row_token.size());
  const auto in_order = random_bf16(static_cast<std::size_t>(count) * kInner, 1, 1.0);
  const auto x = random_bf16(kTokens * kHidden, 2, 1.0);
  OnDevice<std::int32_t> offsets(rows.offsets);
  OnDevice<std::int32_t> row_token(rows.row_token);
  OnDevice<std::uint16_t> d_in_order(in_order);
  OnDevice<std::uint16_t> d_x(x);
  for (const bool gather_a : {false, true}) {
    const std::int64_t a_columns = gather_a ? kHidden : kInner;
    const std::int64_t b_columns = gather_a ? kInner : kHidden;
    const ConstMatrixView ordered{in_order.data(), count, kInner, kInner, kType};
    const ConstMatrixView gathered{x.data(), kTokens, kHidden, kHidden, kType};
    TypedMatrix gradients(kExperts * a_columns, b_columns, kType);
    std::vector<MatrixView> views;
    for (int e = 0; e < kExperts; ++e) {
      const MatrixView all = gradients.view();
      views.push_back(
          {all.row<std::uint16_t>(e * a_columns), a_columns, b_columns, b_columns, kType});
    }
    GroupedWeightGradient want;
    want.a = gather_a ? gathered : ordered;
    want.b = gather_a ? ordered : gathered;
    (gather_a ? want.a_rows : want.b_rows) = rows.row_token;
    want.expert_offsets = rows.wide_offsets;
    want.gradients = views;
    grouped_weight_gradient(want, {nullptr, Backend::kReference});

    OnDevice<std::uint16_t> d_gradients(poison(kExperts * a_columns * b_columns));
    const ConstMatrixView d_ordered{d_in_order.data(), count, kInner, kInner, kType};
    const ConstMatrixView d_gathered{d_x.data(), kTokens, kHidden, kHidden, kType};
    cuda::GroupedWeightGradient task;
    task.a = gather_a ? d_gathered : d_ordered;
    task.b = gather_a ? d_ordered : d_gathered;
    (gather_a ? task.a_rows : task.b_rows) = row_token.data();
    task.expert_offsets = offsets.data();
    task.gradient = {d_gradients.data(), kExperts, a_columns, b_columns, kType, false};
    cuda::grouped_weight_gradient(task, options(), nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<std::uint16_t> got = d_gradients.host();
    EXPECT_LE(error_of(got, gradients), 6e-3);
    for (std::int64_t i = (kExperts - 1) * a_columns * b_columns;
         i < kExperts * a_columns * b_columns; ++i) {
      ASSERT_EQ(got[static_cast<std::size_t>(i)], 0) << "the expert without rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KernelsBackwardCuda, BackwardOnGpu,
                         testing::Values(cuda::Path::kAutomatic, cuda::Path::kGeneric));

}  // namespace
}  // namespace coterie::kernels
