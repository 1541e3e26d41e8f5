// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "tests/run/kernels/backward_on_device.hpp"

/// The GPU twins of backward against the reference twins. Without a GPU, what they refuse is tested
/// alone.
namespace coterie::kernels {
namespace {

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
  cuda::GroupedBiasGradient bias;
  bias.a = {some, 4, 16, 16, kType};
  bias.expert_offsets = offsets;
  bias.gradient = {some, 1, 16, 16, kType, false};
  EXPECT_NE(
      message_of([&] { cuda::grouped_bias_gradient(bias, nullptr); }).find("rows of gradient"),
      std::string::npos);
  bias.gradient = {some, 1, 1, 8, kType, false};
  EXPECT_NE(message_of([&] { cuda::grouped_bias_gradient(bias, nullptr); }).find("needs 8"),
            std::string::npos);
  cuda::SumRowDots dots;
  dots.num_pairs = std::int64_t{1} << 31;
  EXPECT_NE(message_of([&] { cuda::sum_row_dots(dots, nullptr); }).find("num_pairs"),
            std::string::npos);
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
