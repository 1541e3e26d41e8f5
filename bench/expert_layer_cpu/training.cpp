// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_layer_cpu/training.hpp"

#include <algorithm>
#include <cmath>

namespace coterie::bench {

using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

TrainingStep::TrainingStep(const Layer& layer) : layer_(layer) {
  const LayerShape& shape = layer.shape();
  const std::int64_t size = size_of(layer.type());
  const auto bytes = [&](std::int64_t columns) {
    return static_cast<std::size_t>(layer.num_rows() * columns * size);
  };
  grad_rows_.resize(bytes(shape.hidden_size));
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < layer.num_rows() * shape.hidden_size; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
    if (layer.type() == DType::kFloat32) {
      reinterpret_cast<float*>(grad_rows_.data())[i] = value;
    } else {
      reinterpret_cast<std::uint16_t*>(grad_rows_.data())[i] = kernels::to_bfloat16(value);
    }
  }
  for (auto [buffer, columns] :
       {std::pair{&pre_, 2 * shape.inner_size}, std::pair{&grad_pre_, 2 * shape.inner_size},
        std::pair{&hidden_, shape.inner_size}, std::pair{&hidden_again_, shape.inner_size},
        std::pair{&rows_, shape.hidden_size}, std::pair{&grad_x_rows_, shape.hidden_size}}) {
    buffer->assign(bytes(columns), '\xff');
  }
  gradients_.assign(static_cast<std::size_t>(shape.num_experts * expert_elements()), std::nanf(""));
}

std::int64_t TrainingStep::expert_elements() const {
  return 3 * layer_.shape().hidden_size * layer_.shape().inner_size;
}
const float* TrainingStep::grad_gate_up(std::int64_t expert) const {
  return gradients_.data() + expert * expert_elements();
}
const float* TrainingStep::grad_down(std::int64_t expert) const {
  return grad_gate_up(expert) + expert_elements() / 3 * 2;
}

void TrainingStep::run(const kernels::Execution& execution) {
  const std::int64_t hidden = layer_.shape().hidden_size, inner = layer_.shape().inner_size;
  const std::int64_t num_rows = layer_.num_rows();
  const DType type = layer_.type();
  std::vector<ConstMatrixView> up_weights, down_weights;
  std::vector<MatrixView> up_gradients, down_gradients;
  for (std::int64_t e = 0; e < layer_.shape().num_experts; ++e) {
    up_weights.emplace_back(layer_.gate_up(e), 2 * inner, hidden, hidden, type);
    down_weights.emplace_back(layer_.down(e), hidden, inner, inner, type);
    up_gradients.push_back(
        {const_cast<float*>(grad_gate_up(e)), 2 * inner, hidden, hidden, DType::kFloat32});
    down_gradients.push_back(
        {const_cast<float*>(grad_down(e)), hidden, inner, inner, DType::kFloat32});
  }
  const auto rows_of = [&](std::vector<char>& buffer, std::int64_t columns) {
    return MatrixView{buffer.data(), num_rows, columns, columns, type};
  };
  const ConstMatrixView x(layer_.x(), num_rows, hidden, hidden, type);
  const MatrixView pre = rows_of(pre_, 2 * inner), grad_pre = rows_of(grad_pre_, 2 * inner);
  const MatrixView again = rows_of(hidden_again_, inner);
  const auto& offsets = layer_.offsets();
  grouped_up({x,
              layer_.row_of(),
              offsets,
              up_weights,
              rows_of(hidden_, inner),
              kernels::Activation::kSwiGlu,
              {},
              pre},
             execution);
  grouped_down({rows_of(hidden_, inner), offsets, down_weights, rows_of(rows_, hidden)}, execution);
  kernels::GroupedDownBackward down;
  down.grad_rows = rows_of(grad_rows_, hidden);
  down.expert_offsets = offsets;
  down.down = down_weights;
  down.pre = pre;
  down.grad_pre = grad_pre;
  down.hidden = again;
  grouped_down_backward(down, execution);
  grouped_up_backward({grad_pre, offsets, up_weights, rows_of(grad_x_rows_, hidden)}, execution);
  grouped_weight_gradient({grad_pre, {}, x, layer_.row_of(), offsets, up_gradients}, execution);
  grouped_weight_gradient({down.grad_rows, {}, again, {}, offsets, down_gradients}, execution);
}

}  // namespace coterie::bench
