// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/kernels_decoder_cuda.hpp"
#include "coterie/run/kernels/numbers.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct RotaryShape {
  std::int64_t num_items;  // groups of kWidth pairs
  std::int64_t heads;
  std::int64_t groups;  // of a head
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int64_t head_dim;
  float sign;
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(const T* x, T* y, const float* cosines, const float* sines,
                  const std::int64_t* positions, const RotaryShape shape) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= shape.num_items) {
    return;
  }
  const std::int64_t group = item % shape.groups;
  const std::int64_t head = item / shape.groups % shape.heads;
  const std::int64_t token = item / (shape.groups * shape.heads);
  const std::int64_t half = shape.head_dim / 2;
  const std::int64_t column = head * shape.head_dim + group * kWidth;
  const std::int64_t angle = positions[token] * shape.head_dim + group * kWidth;
  const Numbers<T, kWidth> first = Numbers<T, kWidth>::load(x + token * shape.x_stride + column);
  const Numbers<T, kWidth> second =
      Numbers<T, kWidth>::load(x + token * shape.x_stride + column + half);
  const Numbers<float, kWidth> c = Numbers<float, kWidth>::load(cosines + angle);
  const Numbers<float, kWidth> s = Numbers<float, kWidth>::load(sines + angle);
  Numbers<T, kWidth> low;
  Numbers<T, kWidth> high;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float sine = shape.sign * s.get(i);
    low.set(i, first.get(i) * c.get(i) - second.get(i) * sine);
    high.set(i, second.get(i) * c.get(i) + first.get(i) * sine);
  }
  low.store(y + token * shape.y_stride + column);
  high.store(y + token * shape.y_stride + column + half);
}

template <typename T, int kWidth>
void launch_rotary(const Rotary& task, Stream stream) {
  RotaryShape shape{};
  shape.head_dim = task.head_dim;
  shape.heads = task.x.columns / task.head_dim;
  shape.groups = task.head_dim / 2 / kWidth;
  shape.num_items = task.x.rows * shape.heads * shape.groups;
  shape.x_stride = task.x.row_stride;
  shape.y_stride = task.y.row_stride;
  shape.sign = task.is_backward ? -1.0F : 1.0F;
  const auto blocks = static_cast<unsigned>(divide_up(shape.num_items, kThreads));
  rotary_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(
      static_cast<const T*>(task.x.data), static_cast<T*>(task.y.data), task.cosines, task.sines,
      task.positions, shape);
  require_launch("rotary");
}

template <typename T>
void rotary_of(const Rotary& task, Stream stream) {
  const auto fits = [&](std::int64_t width) {
    const std::int64_t bytes = width * static_cast<std::int64_t>(sizeof(T));
    return task.head_dim / 2 % width == 0 && are_aligned(task.x, bytes) &&
           are_aligned(task.y, bytes) && is_aligned(task.cosines, width * 4) &&
           is_aligned(task.sines, width * 4);
  };
  if (fits(4)) {
    launch_rotary<T, 4>(task, stream);
  } else {
    launch_rotary<T, 1>(task, stream);
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const CountIds task) {
  extern __shared__ unsigned found[];
  for (int e = static_cast<int>(threadIdx.x); e < task.num_experts; e += kThreads) {
    found[e] = 0;
  }
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < task.num_ids;
       i += step) {
    const std::int32_t id = task.ids[i];
    if (id >= 0 && id < task.num_experts) {
      atomicAdd(&found[id], 1U);
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < task.num_experts; e += kThreads) {
    if (found[e] > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(task.counts) + e,
                static_cast<unsigned long long>(found[e]));
    }
  }
}

}  // namespace

void rotary(const Rotary& task, Stream stream) {
  const char* const what = "rotary";
  COTERIE_REQUIRE(
      task.head_dim >= 2 && task.head_dim % 2 == 0 && task.x.columns % task.head_dim == 0, what,
      ": head_dim is ", task.head_dim, ", x has ", task.x.columns, " columns");
  COTERIE_REQUIRE(
      task.y.rows == task.x.rows && task.y.columns == task.x.columns && task.y.type == task.x.type,
      what, ": y differs from x in shape or type");
  if (task.x.rows == 0) {
    return;
  }
  require_pointer(what, "x", task.x.data);
  require_pointer(what, "y", task.y.data);
  require_pointer(what, "cosines", task.cosines);
  require_pointer(what, "sines", task.sines);
  require_pointer(what, "positions", task.positions);
  require_between(what, "numbers of x", task.x.rows * task.x.columns, 0,
                  std::int64_t{INT32_MAX} * kThreads);
  if (task.x.type == DType::kBfloat16) {
    rotary_of<__nv_bfloat16>(task, stream);
  } else {
    COTERIE_REQUIRE(task.x.type == DType::kFloat32, what, ": x must be bf16 or fp32");
    rotary_of<float>(task, stream);
  }
}

void count_ids(const CountIds& task, Stream stream) {
  const char* const what = "count_ids";
  require_between(what, "num_experts", task.num_experts, 1, kMaxExperts);
  require_between(what, "num_ids", task.num_ids, 0, INT32_MAX);
  if (task.num_ids == 0) {
    return;
  }
  require_pointer(what, "ids", task.ids);
  require_pointer(what, "counts", task.counts);
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(divide_up(task.num_ids, 8 * kThreads), 264));
  count_kernel<<<blocks, kThreads, static_cast<std::size_t>(task.num_experts) * 4, stream>>>(task);
  require_launch(what);
}

}  // namespace coterie::kernels::cuda
