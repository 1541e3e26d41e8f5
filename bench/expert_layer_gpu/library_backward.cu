// SPDX-License-Identifier: Apache-2.0
/// The GPU kernels of backward behind plain C functions, for the Python programs beside this file.
/// Each returns nullptr or the message of what went wrong. Structs are the same in backward.py.
#include <string>

#include "bench/expert_layer_gpu/guarded.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace {

namespace cuda = coterie::kernels::cuda;
using coterie::kernels::ConstMatrixView;
using coterie::kernels::DType;
using coterie::kernels::MatrixView;

}  // namespace

extern "C" {

struct How {
  std::int64_t path;
  unsigned* watchdog;
  void* stream;
};

struct Matrix {
  void* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;
  std::int64_t type;
};

struct Experts {
  void* data;
  std::int64_t num_experts;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t type;
  std::int64_t accumulate;
};

static cuda::Stream stream_of(const How* how) {
  return static_cast<cuda::Stream>(how->stream);
}

static cuda::ProductOptions options_of(const How* how) {
  cuda::ProductOptions options;
  options.path = static_cast<cuda::Path>(how->path);
  options.watchdog = how->watchdog;
  return options;
}

static MatrixView view(const Matrix* m) {
  return m == nullptr
             ? MatrixView{}
             : MatrixView{m->data, m->rows, m->columns, m->stride, static_cast<DType>(m->type)};
}

static cuda::ExpertWeights weights_of(const Experts* e) {
  return {e->data, e->num_experts, e->rows, e->columns, static_cast<DType>(e->type)};
}

static cuda::ExpertGradients gradients_of(const Experts* e) {
  return {e->data,           e->num_experts, e->rows, e->columns, static_cast<DType>(e->type),
          e->accumulate != 0};
}

/// The second matrix of a row source, if there is one.
struct More {
  explicit More(const Matrix* m) : view(::view(m)), count(m == nullptr ? 0U : 1U) {}
  [[nodiscard]] std::span<const ConstMatrixView> span() const { return {&view, count}; }
  ConstMatrixView view;
  std::size_t count;
};

const char* weights_of_rows(const How* how, const float* from, const std::int32_t* pos_of,
                            std::int64_t num_pairs, float* to) {
  return guarded([&] { cuda::weights_of_rows({from, pos_of, num_pairs, to}, stream_of(how)); });
}

const char* sum_row_dots(const How* how, const float* parts, std::int64_t num_parts,
                         std::int64_t stride, const std::int32_t* pos_of, std::int64_t num_pairs,
                         float* to) {
  return guarded([&] {
    cuda::sum_row_dots({parts, num_parts, stride, pos_of, num_pairs, to}, stream_of(how));
  });
}

const char* down_backward(const How* how, const Matrix* grad_y, const Matrix* more_grad_y,
                          const std::int32_t* row_token, const std::int32_t* offsets,
                          const float* row_weights, const Experts* down, const Matrix* pre,
                          const Matrix* grad_pre, const Matrix* hidden, float* row_dots,
                          std::int64_t row_dots_stride, std::int64_t activation, const void* bias) {
  return guarded([&] {
    const More more(more_grad_y);
    cuda::GroupedDownBackward task;
    task.grad_y = view(grad_y);
    task.more_grad_y = more.span();
    task.row_token = row_token;
    task.expert_offsets = offsets;
    task.row_weights = row_weights;
    task.down = weights_of(down);
    task.pre = view(pre);
    task.grad_pre = view(grad_pre);
    task.hidden = view(hidden);
    task.row_dots = row_dots;
    task.row_dots_stride = row_dots_stride;
    task.activation = static_cast<coterie::kernels::Activation>(activation);
    task.bias = bias;
    cuda::grouped_down_backward(task, options_of(how), stream_of(how));
  });
}

const char* up_backward(const How* how, const Matrix* grad_pre, const std::int32_t* offsets,
                        const Experts* gate_up, const Matrix* grad_rows) {
  return guarded([&] {
    cuda::grouped_up_backward({view(grad_pre), offsets, weights_of(gate_up), view(grad_rows)},
                              options_of(how), stream_of(how));
  });
}

const char* weight_gradient(const How* how, const Matrix* a, const Matrix* more_a,
                            const std::int32_t* a_rows, const Matrix* b, const Matrix* more_b,
                            const std::int32_t* b_rows, const std::int32_t* offsets,
                            const Experts* gradient) {
  return guarded([&] {
    const More also_a(more_a);
    const More also_b(more_b);
    cuda::GroupedWeightGradient task;
    task.a = view(a);
    task.more_a = also_a.span();
    task.a_rows = a_rows;
    task.b = view(b);
    task.more_b = also_b.span();
    task.b_rows = b_rows;
    task.expert_offsets = offsets;
    task.gradient = gradients_of(gradient);
    cuda::grouped_weight_gradient(task, options_of(how), stream_of(how));
  });
}

const char* bias_gradient(const How* how, const Matrix* a, const Matrix* more_a,
                          const std::int32_t* a_rows, const float* row_weights,
                          const std::int32_t* offsets, const Experts* gradient) {
  return guarded([&] {
    const More more(more_a);
    cuda::GroupedBiasGradient task;
    task.a = view(a);
    task.more_a = more.span();
    task.a_rows = a_rows;
    task.row_weights = row_weights;
    task.expert_offsets = offsets;
    task.gradient = gradients_of(gradient);
    cuda::grouped_bias_gradient(task, stream_of(how));
  });
}

struct LayerBackward {
  const Matrix* grad_y;
  const Matrix* x;
  const Matrix* pre;
  const std::int32_t* ids;
  const float* weights;
  std::int64_t top_k;
  const Experts* gate_up;
  const Experts* down;
  std::int64_t reuse_pre;
  const Matrix* grad_x;
  float* grad_weights;
  const Experts* grad_gate_up;
  const Experts* grad_down;
  void* workspace;
  std::int64_t workspace_bytes;
  std::int64_t activation;
  const void* down_bias;
  const Experts* grad_up_bias;  // null: not wanted
  const Experts* grad_down_bias;
};

static cuda::ExpertLayerBackward task_of(const LayerBackward* l) {
  cuda::ExpertLayerBackward task;
  task.grad_y = view(l->grad_y);
  task.x = view(l->x);
  task.pre = view(l->pre);
  task.ids = l->ids;
  task.weights = l->weights;
  task.top_k = static_cast<int>(l->top_k);
  task.gate_up = weights_of(l->gate_up);
  task.down = weights_of(l->down);
  task.reuse_pre = l->reuse_pre != 0;
  task.grad_x = view(l->grad_x);
  task.grad_weights = l->grad_weights;
  task.grad_gate_up = gradients_of(l->grad_gate_up);
  task.grad_down = gradients_of(l->grad_down);
  task.workspace = l->workspace;
  task.workspace_bytes = static_cast<std::size_t>(l->workspace_bytes);
  task.activation = static_cast<coterie::kernels::Activation>(l->activation);
  task.down_bias = l->down_bias;
  if (l->grad_up_bias != nullptr) {
    task.grad_up_bias = gradients_of(l->grad_up_bias);
  }
  if (l->grad_down_bias != nullptr) {
    task.grad_down_bias = gradients_of(l->grad_down_bias);
  }
  return task;
}

std::int64_t layer_backward_workspace_bytes(const LayerBackward* layer) {
  return static_cast<std::int64_t>(cuda::expert_layer_backward_workspace_bytes(task_of(layer)));
}

const char* layer_backward(const How* how, const LayerBackward* layer) {
  return guarded(
      [&] { cuda::expert_layer_backward(task_of(layer), options_of(how), stream_of(how)); });
}

/// Forward that keeps the pre-activation.
const char* layer_forward(const How* how, const Matrix* x, const std::int32_t* ids,
                          const float* weights, std::int64_t top_k, const Experts* gate_up,
                          const Experts* down, const Matrix* y, const Matrix* pre, void* workspace,
                          std::int64_t bytes, std::int64_t activation, const void* up_bias,
                          const void* down_bias, cuda::Faults* faults) {
  return guarded([&] {
    cuda::ExpertLayer task;
    task.x = view(x);
    task.ids = ids;
    task.weights = weights;
    task.top_k = static_cast<int>(top_k);
    task.gate_up = weights_of(gate_up);
    task.down = weights_of(down);
    task.y = view(y);
    task.pre = view(pre);
    task.workspace = workspace;
    task.workspace_bytes = static_cast<std::size_t>(bytes);
    task.activation = static_cast<coterie::kernels::Activation>(activation);
    task.up_bias = up_bias;
    task.down_bias = down_bias;
    task.faults = faults;
    cuda::expert_layer(task, options_of(how), stream_of(how));
  });
}

}  // extern "C"
