// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "bench/expert_layer_cpu/training.hpp"

namespace coterie::bench {
namespace {

/// Largest difference of an element over its size plus the root mean square of all.
double compare(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor ours = wanted.to(at::kDouble);
  const double typical = std::sqrt(ours.square().mean().item<double>());
  return ((got.to(at::kDouble) - ours).abs() / (ours.abs() + typical)).max().item<double>();
}

}  // namespace

struct AtLinearStep::State {
  const TrainingStep* step;
  at::Tensor x, grad_rows;
  std::vector<at::Tensor> gate_up, down, rows_of, x_rows;
};

AtLinearStep::AtLinearStep(const TrainingStep& step, int num_threads) : state_(new State) {
  at::set_num_threads(num_threads);
  const Layer& layer = step.layer();
  const auto type = layer.type() == kernels::DType::kFloat32 ? at::kFloat : at::kBFloat16;
  const LayerShape& shape = layer.shape();
  const auto view = [&](const void* data, std::int64_t rows, std::int64_t columns) {
    return at::from_blob(const_cast<void*>(data), {rows, columns}, at::TensorOptions(type));
  };
  state_->step = &step;
  state_->x = view(layer.x(), layer.num_rows(), shape.hidden_size);
  state_->grad_rows = view(step.grad_rows(), layer.num_rows(), shape.hidden_size);
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    state_->gate_up.push_back(view(layer.gate_up(e), 2 * shape.inner_size, shape.hidden_size));
    state_->gate_up.back().requires_grad_();
    state_->down.push_back(view(layer.down(e), shape.hidden_size, shape.inner_size));
    state_->down.back().requires_grad_();
    const at::ArrayRef<std::int32_t> rows(
        layer.row_of().data() + layer.offsets()[at],
        static_cast<std::size_t>(layer.offsets()[at + 1] - layer.offsets()[at]));
    state_->rows_of.push_back(at::tensor(rows).to(at::kLong));
  }
  state_->x_rows.resize(state_->down.size());
}

AtLinearStep::~AtLinearStep() {
  delete state_;
}

void AtLinearStep::run() {
  const std::int64_t inner = state_->step->layer().shape().inner_size;
  const auto& offsets = state_->step->layer().offsets();
  for (std::size_t e = 0; e < state_->down.size(); ++e) {
    state_->gate_up[e].mutable_grad().reset();
    state_->down[e].mutable_grad().reset();
    state_->x_rows[e] = state_->x.index_select(0, state_->rows_of[e]).requires_grad_();
    const at::Tensor both = at::linear(state_->x_rows[e], state_->gate_up[e]);
    const at::Tensor hidden = at::silu(both.narrow(1, 0, inner)).mul(both.narrow(1, inner, inner));
    const at::Tensor rows = at::linear(hidden, state_->down[e]);
    rows.backward(state_->grad_rows.narrow(0, offsets[e], offsets[e + 1] - offsets[e]));
  }
}

double AtLinearStep::difference() {
  run();
  const TrainingStep& step = *state_->step;
  const LayerShape& shape = step.layer().shape();
  double worst = 0.0;
  std::vector<at::Tensor> grad_x;
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const auto ours = [&](const float* data, std::int64_t rows, std::int64_t columns) {
      return at::from_blob(const_cast<float*>(data), {rows, columns}, at::kFloat);
    };
    worst = std::max({worst,
                      compare(state_->gate_up[at].grad(),
                              ours(step.grad_gate_up(e), 2 * shape.inner_size, shape.hidden_size)),
                      compare(state_->down[at].grad(),
                              ours(step.grad_down(e), shape.hidden_size, shape.inner_size))});
    grad_x.push_back(state_->x_rows[at].grad());
  }
  const at::Tensor got = at::cat(grad_x);
  return std::max(worst, compare(got, at::from_blob(const_cast<char*>(step.grad_x_rows().data()),
                                                    got.sizes(), got.options())));
}

}  // namespace coterie::bench
