// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/run/kernels/backward_on_device.hpp"

/// Row gradients and bias gradients on a GPU against the reference twins.
namespace coterie::kernels {
namespace {

/// Inputs of grouped_down_backward and what the reference makes of them.
struct DownCase {
  Rows rows = sorted_rows();
  std::int64_t count = static_cast<std::int64_t>(rows.row_token.size());
  std::int64_t width;  // of the pre-activations
  std::vector<std::uint16_t> grad_y = random_bf16(kTokens * kHidden, 1, 1.0);
  std::vector<std::uint16_t> pre;
  std::vector<std::uint16_t> down = random_bf16(kExperts * kHidden * kInner, 4, 0.05);
  std::vector<std::uint16_t> bias;
  TypedMatrix grad_pre;
  TypedMatrix hidden{count, kInner, kType};
  TypedMatrix grad_weights{count, 1, DType::kFloat32};

  DownCase(Activation activation, bool biased)
      : width(kInner * pre_activations_per_hidden(activation)),
        pre(random_bf16(static_cast<std::size_t>(count * width), 2, 1.5)),
        bias(random_bf16(biased ? kExperts * kHidden : 0, 5, 1.0)),
        grad_pre(count, width, kType) {
    const auto down_views = matrices(down, kHidden, kInner);
    const auto bias_views = biased ? matrices(bias, 1, kHidden) : std::vector<ConstMatrixView>{};
    GroupedDownBackward want;
    want.grad_rows = {grad_y.data(), kTokens, kHidden, kHidden, kType};
    want.row_of = rows.row_token;
    want.weights = {rows.row_weights.data(), count, 1, 1, DType::kFloat32};
    want.expert_offsets = rows.wide_offsets;
    want.down = down_views;
    want.bias = bias_views;
    want.pre = {pre.data(), count, width, width, kType};
    want.activation = activation;
    want.grad_pre = grad_pre.view();
    want.hidden = hidden.view();
    want.grad_weights = grad_weights.view();
    grouped_down_backward(want, {nullptr, Backend::kReference});
  }
};

/// Relative error of sums of parts, [parts, count], against a column.
double error_of_dots(const std::vector<float>& parts, const TypedMatrix& want) {
  double error = 0.0;
  double size = 0.0;
  const auto count = static_cast<std::size_t>(want.rows());
  for (std::size_t r = 0; r < count; ++r) {
    double got = 0.0;
    for (std::size_t i = r; i < parts.size(); i += count) {
      got += static_cast<double>(parts[i]);
    }
    const double wanted = want.at(static_cast<std::int64_t>(r), 0);
    error += (got - wanted) * (got - wanted);
    size += wanted * wanted;
  }
  return std::sqrt(error / size);
}

void check_down(Activation activation, bool biased, std::int64_t first_rows,
                const cuda::ProductOptions& options) {
  SCOPED_TRACE(testing::Message() << name_of(activation) << (biased ? ", biased" : "") << ", "
                                  << first_rows << " rows in the first matrix");
  DownCase want(activation, biased);
  const std::int64_t count = want.count;
  const std::int64_t parts = cuda::row_dot_parts(kInner) + (biased ? 1 : 0);
  OnDevice<std::int32_t> offsets(want.rows.offsets);
  OnDevice<std::int32_t> row_token(want.rows.row_token);
  OnDevice<float> row_weights(want.rows.row_weights);
  const auto cut = want.grad_y.begin() + first_rows * kHidden;
  OnDevice<std::uint16_t> first(std::vector<std::uint16_t>(want.grad_y.begin(), cut));
  OnDevice<std::uint16_t> rest(std::vector<std::uint16_t>(cut, want.grad_y.end()));
  OnDevice<std::uint16_t> pre(want.pre);
  OnDevice<std::uint16_t> down(want.down);
  OnDevice<std::uint16_t> bias(want.bias);
  OnDevice<std::uint16_t> grad_pre(poison(count * want.width));
  OnDevice<std::uint16_t> hidden(poison(count * kInner));
  OnDevice<float> dots(nans(parts * count));
  const std::vector<ConstMatrixView> more{
      {rest.data(), kTokens - first_rows, kHidden, kHidden, kType}};
  cuda::GroupedDownBackward task;
  task.grad_y = {first.data(), first_rows, kHidden, kHidden, kType};
  task.more_grad_y = std::span(more).first(first_rows < kTokens ? 1 : 0);
  task.row_token = row_token.data();
  task.expert_offsets = offsets.data();
  task.row_weights = row_weights.data();
  task.down = {down.data(), kExperts, kHidden, kInner};
  task.pre = {pre.data(), count, want.width, want.width, kType};
  task.grad_pre = {grad_pre.data(), count, want.width, want.width, kType};
  task.hidden = {hidden.data(), count, kInner, kInner, kType};
  task.row_dots = dots.data();
  task.row_dots_stride = count;
  task.activation = activation;
  task.bias = biased ? bias.data() : nullptr;
  cuda::grouped_down_backward(task, options, nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LE(error_of(grad_pre.host(), want.grad_pre), 6e-3);
  EXPECT_LE(error_of(hidden.host(), want.hidden), 6e-3);
  EXPECT_LE(error_of_dots(dots.host(), want.grad_weights), 6e-3);
}

TEST_P(BackwardOnGpu, DownGradientsEqualReference) {
  NEEDS_GPU();
  for (const Activation activation :
       {Activation::kSwiGlu, Activation::kGelu, Activation::kGeluTanh}) {
    for (const bool biased : {false, true}) {
      check_down(activation, biased, kTokens, options());
    }
    check_down(activation, false, kTokens / 3, options());
  }
}

TEST_P(BackwardOnGpu, UpGradientsEqualReference) {
  NEEDS_GPU();
  const Rows rows = sorted_rows();
  const auto count = static_cast<std::int64_t>(rows.row_token.size());
  const auto grad_pre = random_bf16(static_cast<std::size_t>(count) * 2 * kInner, 2, 1.5);
  const auto gate_up = random_bf16(kExperts * 2 * kInner * kHidden, 3, 0.05);
  TypedMatrix grad_rows(count, kHidden, kType);
  const auto views = matrices(gate_up, 2 * kInner, kHidden);
  grouped_up_backward({{grad_pre.data(), count, 2 * kInner, 2 * kInner, kType},
                       rows.wide_offsets,
                       views,
                       grad_rows.view()},
                      {nullptr, Backend::kReference});
  OnDevice<std::int32_t> offsets(rows.offsets);
  OnDevice<std::uint16_t> d_grad_pre(grad_pre);
  OnDevice<std::uint16_t> d_gate_up(gate_up);
  OnDevice<std::uint16_t> d_grad_rows(poison(count * kHidden));
  cuda::grouped_up_backward({{d_grad_pre.data(), count, 2 * kInner, 2 * kInner, kType},
                             offsets.data(),
                             {d_gate_up.data(), kExperts, 2 * kInner, kHidden},
                             {d_grad_rows.data(), count, kHidden, kHidden, kType}},
                            options(), nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LE(error_of(d_grad_rows.host(), grad_rows), 6e-3);
}

/// One bias gradient, by rows of a (listed) or as they lie, weighted or not, added or written.
struct BiasCase {
  bool listed;
  bool weighted;
  bool accumulate;
};

std::vector<float> bias_gradient_of(const BiasCase& c, const Rows& rows,
                                    const std::vector<std::uint16_t>& a, Backend backend) {
  const auto count = static_cast<std::int64_t>(rows.row_token.size());
  std::vector<float> out(kExperts * kHidden, 0.25F);
  std::vector<MatrixView> views;
  for (int e = 0; e < kExperts; ++e) {
    views.push_back({out.data() + e * kHidden, 1, kHidden, kHidden, DType::kFloat32});
  }
  GroupedBiasGradient task;
  task.a = {a.data(), c.listed ? kTokens : count, kHidden, kHidden, kType};
  if (c.listed) {
    task.a_rows = rows.row_token;
  }
  if (c.weighted) {
    task.weights = {rows.row_weights.data(), count, 1, 1, DType::kFloat32};
  }
  task.expert_offsets = rows.wide_offsets;
  task.gradients = views;
  task.accumulate = c.accumulate;
  grouped_bias_gradient(task, {nullptr, backend});
  return out;
}

std::vector<float> bias_gradient_on_gpu(const BiasCase& c, const Rows& rows,
                                        const std::vector<std::uint16_t>& a) {
  const auto count = static_cast<std::int64_t>(rows.row_token.size());
  OnDevice<std::int32_t> offsets(rows.offsets);
  OnDevice<std::int32_t> row_token(rows.row_token);
  OnDevice<float> row_weights(rows.row_weights);
  OnDevice<std::uint16_t> d_a(a);
  OnDevice<float> out(std::vector<float>(kExperts * kHidden, 0.25F));
  cuda::GroupedBiasGradient task;
  task.a = {d_a.data(), c.listed ? kTokens : count, kHidden, kHidden, kType};
  task.a_rows = c.listed ? row_token.data() : nullptr;
  task.row_weights = c.weighted ? row_weights.data() : nullptr;
  task.expert_offsets = offsets.data();
  task.gradient = {out.data(), kExperts, 1, kHidden, DType::kFloat32, c.accumulate};
  cuda::grouped_bias_gradient(task, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.host();
}

TEST(BiasGradientCuda, AllBackEndsGiveTheSameBits) {
  const Rows rows = sorted_rows();
  const auto count = rows.row_token.size();
  for (const bool listed : {false, true}) {
    for (const bool weighted : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const BiasCase c{listed, weighted, accumulate};
        const auto a = random_bf16((listed ? kTokens : count) * kHidden, 7, 1.0);
        const auto want = bias_gradient_of(c, rows, a, Backend::kReference);
        EXPECT_EQ(want.back(), accumulate ? 0.25F : 0.0F) << "the expert without rows";
        for (const Backend backend : available_backends()) {
          EXPECT_EQ(bias_gradient_of(c, rows, a, backend), want) << name_of(backend);
        }
        if (has_gpu()) {
          EXPECT_EQ(bias_gradient_on_gpu(c, rows, a), want) << "GPU";
        }
      }
    }
  }
}

}  // namespace
}  // namespace coterie::kernels
