// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/activation_backward.cuh"
#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/mma.cuh"
#include "coterie/run/kernels/overlap.cuh"

/// The activation's backward as a pass of its own, behind the generic row gradient.
namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct ActivationArguments {
  const void* pre;
  std::int64_t pre_stride;
  void* grad_pre;
  std::int64_t grad_pre_stride;
  void* hidden;  // in: dL/d(hidden) before the row's weight; out: hidden times weight
  std::int64_t hidden_stride;
  const float* row_weights;
  float* dots;
  std::int64_t dots_stride;
  const std::int32_t* num_rows;
  int columns;
  Activation activation;
};

/// The activation's backward; one block a row and part of 256 columns.
template <typename T>
__global__ void __launch_bounds__(kThreads) activation_kernel(const ActivationArguments task) {
  __shared__ float parts[kThreads / 32];
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  if (row >= *task.num_rows) {
    return;
  }
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const float weight = task.row_weights != nullptr ? task.row_weights[row] : 1.0F;
  float dot = 0.0F;
  if (column < task.columns) {
    const T* const pre = static_cast<const T*>(task.pre) + row * task.pre_stride + column;
    T* const grad_pre = static_cast<T*>(task.grad_pre) + row * task.grad_pre_stride + column;
    T* const hidden = static_cast<T*>(task.hidden) + row * task.hidden_stride + column;
    const float value = to_float(*hidden);
    if (task.activation == Activation::kSwiGlu) {
      const SwiGluGradient g = swiglu_backward(to_float(pre[0]), to_float(pre[task.columns]));
      dot = value * g.hidden;
      from_float(grad_pre, value * weight * g.by_gate);
      from_float(grad_pre + task.columns, value * weight * g.by_up);
      from_float(hidden, g.hidden * weight);
    } else {
      const GeluGradient g = gelu_backward(to_float(pre[0]), task.activation);
      dot = value * g.hidden;
      from_float(grad_pre, value * weight * g.by_pre);
      from_float(hidden, g.hidden * weight);
    }
  }
  if (task.dots == nullptr) {
    return;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    dot += __shfl_xor_sync(~0U, dot, distance);
  }
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = dot;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0F;
    for (const float part : parts) {
      sum += part;
    }
    task.dots[blockIdx.y * task.dots_stride + row] = sum;
  }
}

}  // namespace

void activation_backward(const RowGradient& task, Stream stream) {
  const GroupedDownBackward& fused = *task.fused;
  const ActivationArguments activation{fused.pre.data,
                                       fused.pre.row_stride,
                                       fused.grad_pre.data,
                                       fused.grad_pre.row_stride,
                                       fused.hidden.data,
                                       fused.hidden.row_stride,
                                       fused.row_weights,
                                       fused.row_dots,
                                       fused.row_dots_stride,
                                       task.offsets + task.num_experts,
                                       static_cast<int>(task.columns),
                                       fused.activation};
  const dim3 rows(static_cast<unsigned>(task.max_rows),
                  static_cast<unsigned>(divide_up(task.columns, kThreads)));
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    launch_overlapped("activation gradient", activation_kernel<T>, {rows, kThreads}, stream,
                      activation);
  });
}

}  // namespace coterie::kernels::cuda
