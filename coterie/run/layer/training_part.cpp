// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/training_part.hpp"

#include <cstring>

namespace coterie::layer {
namespace {

using kernels::MatrixView;

template <typename T>
void scatter_as(const exchange::Scalars& from, std::span<const std::int32_t> at,
                exchange::Scalars& to) {
  for (std::size_t i = 0; i < at.size(); ++i) {
    to.data<T>()[at[i]] = from.data<T>()[i];
  }
}

/// Whether any of them is wanted.
bool has_memory(const std::vector<MatrixView>& gradients) {
  for (const MatrixView& gradient : gradients) {
    if (gradient.data != nullptr) {
      return true;
    }
  }
  return false;
}

}  // namespace

void add_weight_gradients(const WeightGradientRows& rows, const DeviceGradients& gradients,
                          const kernels::Execution& execution) {
  const auto& offsets = rows.part.lists.expert_offsets;
  if (has_memory(gradients.down)) {
    kernels::grouped_weight_gradient(
        {rows.grad_outputs, rows.part.input_of, rows.hidden, {}, offsets, gradients.down, true},
        execution);
  }
  if (has_memory(gradients.up)) {
    kernels::grouped_weight_gradient(
        {rows.grad_pre, {}, rows.inputs, rows.input_at, offsets, gradients.up, true}, execution);
  }
  if (has_memory(gradients.up_bias)) {
    kernels::grouped_bias_gradient({rows.grad_pre, {}, {}, offsets, gradients.up_bias, true},
                                   execution);
  }
  if (has_memory(gradients.down_bias)) {
    kernels::grouped_bias_gradient({rows.grad_outputs, rows.part.input_of, rows.weights.view(),
                                    offsets, gradients.down_bias, true},
                                   execution);
  }
}

void set_zero(const DeviceGradients& gradients) {
  for (const auto* views :
       {&gradients.up, &gradients.down, &gradients.up_bias, &gradients.down_bias}) {
    for (const MatrixView& view : *views) {
      for (std::int64_t row = 0; row < view.rows && view.data != nullptr; ++row) {
        std::memset(static_cast<std::byte*>(view.data) +
                        row * view.row_stride * kernels::size_of(view.type),
                    0, static_cast<std::size_t>(view.columns * kernels::size_of(view.type)));
      }
    }
  }
}

void scatter(const exchange::Scalars& from, std::span<const std::int32_t> at,
             exchange::Scalars& to) {
  if (from.type() == kernels::DType::kFloat64) {
    scatter_as<double>(from, at, to);
  } else {
    scatter_as<float>(from, at, to);
  }
}

}  // namespace coterie::layer
