// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cmath>

#include "bench/expert_layer_cpu/layer.hpp"

namespace coterie::bench {

struct AtLinearLayer::State {
  const Layer* layer;
  at::Tensor x;
  std::vector<at::Tensor> gate_up, down, rows_of, outputs;
};

bool AtLinearLayer::is_available() {
  return true;
}

std::string AtLinearLayer::version() {
  return TORCH_VERSION;
}

AtLinearLayer::AtLinearLayer(const Layer& layer, int num_threads) : state_(new State) {
  at::set_num_threads(num_threads);
  const auto type = layer.type() == kernels::DType::kFloat32 ? at::kFloat : at::kBFloat16;
  const LayerShape& shape = layer.shape();
  const auto view = [&](const void* data, std::int64_t rows, std::int64_t columns) {
    return at::from_blob(const_cast<void*>(data), {rows, columns}, at::TensorOptions(type));
  };
  state_->layer = &layer;
  state_->x = view(layer.x(), layer.num_rows(), shape.hidden_size);
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    state_->gate_up.push_back(view(layer.gate_up(e), 2 * shape.inner_size, shape.hidden_size));
    state_->down.push_back(view(layer.down(e), shape.hidden_size, shape.inner_size));
    state_->rows_of.push_back(
        at::tensor(at::ArrayRef<std::int32_t>(
                       layer.row_of().data() + layer.offsets()[at],
                       static_cast<std::size_t>(layer.offsets()[at + 1] - layer.offsets()[at])))
            .to(at::kLong));
  }
  state_->outputs.resize(state_->down.size());
}

AtLinearLayer::~AtLinearLayer() {
  delete state_;
}

void AtLinearLayer::run() {
  const at::InferenceMode no_gradients;
  const std::int64_t inner = state_->layer->shape().inner_size;
  for (std::size_t e = 0; e < state_->down.size(); ++e) {
    const at::Tensor both =
        at::linear(state_->x.index_select(0, state_->rows_of[e]), state_->gate_up[e]);
    const at::Tensor gate = both.narrow(1, 0, inner);
    const at::Tensor up = both.narrow(1, inner, inner);
    state_->outputs[e] = at::linear(at::silu(gate).mul_(up), state_->down[e]);
  }
}

double AtLinearLayer::difference() {
  run();
  const Layer& layer = *state_->layer;
  const at::Tensor got = at::cat(state_->outputs).to(at::kDouble);
  const at::Tensor ours =
      at::from_blob(const_cast<float*>(layer.rows().data()), got.sizes(), at::kFloat)
          .to(at::kDouble);
  return (got - ours).abs().max().item<double>() / std::sqrt(ours.square().mean().item<double>());
}

}  // namespace coterie::bench
