// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/row_math.hpp"

#include <array>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

float mean_square(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  std::array<float, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<std::size_t>(lane)] += x[i + lane] * x[i + lane];
    }
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) {
    sums[static_cast<std::size_t>(lane)] += x[i + lane] * x[i + lane];
  }
  float sum = 0;
  for (const float part : sums) {
    sum += part;
  }
  return sum / static_cast<float>(n);
}

void norm_row(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
  const float factor = 1.0F / std::sqrt(mean_square(x, n) + eps);
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = x[i] * factor * weight[i];
  }
}

}  // namespace

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                        const kernels::Execution& execution) {
  at::Tensor y = at::empty({x.size(0), w.size(0)}, at::kFloat);
  kernels::linear(view_of(x), view_of(w), mutable_view_of(y), execution);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const std::int64_t n = x.size(-1);
  COTERIE_CHECK(x.stride(-1) == 1 && weight.numel() == n, "norm of ", n, " numbers");
  at::Tensor y = at::empty(x.sizes(), at::kFloat);
  const float* in = x.const_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  const bool is_heads = x.dim() == 3;
  const std::int64_t inner = is_heads ? x.size(1) : 1;
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    for (std::int64_t head = 0; head < inner; ++head) {
      const float* row = in + t * x.stride(0) + (is_heads ? head * x.stride(1) : 0);
      norm_row(row, scale, n, static_cast<float>(eps), out + (t * inner + head) * n);
    }
  }
  return y;
}

at::Tensor apply_mlp(const at::Tensor& x, const MlpWeights& weights,
                     const kernels::Execution& execution) {
  at::Tensor hidden = at::empty({x.size(0), weights.down.size(1)}, at::kFloat);
  at::Tensor y = at::empty({x.size(0), weights.down.size(0)}, at::kFloat);
  const std::array<std::int64_t, 2> offsets = {0, x.size(0)};
  const kernels::ConstMatrixView gate_up = view_of(weights.gate_up);
  const kernels::ConstMatrixView down = view_of(weights.down);
  kernels::grouped_up({view_of(x), {}, offsets, {&gate_up, 1}, mutable_view_of(hidden)}, execution);
  kernels::grouped_down({view_of(hidden), offsets, {&down, 1}, mutable_view_of(y)}, execution);
  return y;
}

void add_gated(const at::Tensor& y, const at::Tensor& z, const at::Tensor& x,
               const at::Tensor& gate, const kernels::Execution& execution) {
  if (!gate.defined()) {
    y.add_(z);
    return;
  }
  const at::Tensor logits = apply_linear(x, gate, {}, execution);
  const std::int64_t n = y.size(1);
  for (std::int64_t t = 0; t < y.size(0); ++t) {
    const float share = 1.0F / (1.0F + std::exp(-logits.const_data_ptr<float>()[t]));
    const float* add = z.const_data_ptr<float>() + t * n;
    float* sum = y.mutable_data_ptr<float>() + t * n;
    for (std::int64_t i = 0; i < n; ++i) {
      sum[i] += share * add[i];
    }
  }
}

}  // namespace coterie::models
