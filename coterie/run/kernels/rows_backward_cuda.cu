// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/kernels_backward_cuda.hpp"
#include "coterie/run/kernels/overlap.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) weights_kernel(const WeightsOfRows task) {
  begin_after_previous();
  const std::int64_t pair = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair < task.num_pairs && task.pos_of[pair] >= 0) {
    task.to[task.pos_of[pair]] = task.from[pair];
  }
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const SumRowDots task) {
  begin_after_previous();
  const std::int64_t pair = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= task.num_pairs) {
    return;
  }
  const std::int64_t row = task.pos_of != nullptr ? task.pos_of[pair] : pair;
  float sum = 0.0F;
  for (std::int64_t part = 0; part < task.num_parts && row >= 0; ++part) {
    sum += task.parts[part * task.stride + row];
  }
  task.to[pair] = sum;
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(divide_up(count, kThreads));
}

}  // namespace

void weights_of_rows(const WeightsOfRows& task, Stream stream) {
  const char* const what = "weights_of_rows";
  require_between(what, "num_pairs", task.num_pairs, 0, INT32_MAX);
  if (task.num_pairs == 0) {
    return;
  }
  require_pointer(what, "from", task.from);
  require_pointer(what, "pos_of", task.pos_of);
  require_pointer(what, "to", task.to);
  launch_overlapped(what, weights_kernel, {blocks_for(task.num_pairs), kThreads}, stream, task);
}

void sum_row_dots(const SumRowDots& task, Stream stream) {
  const char* const what = "sum_row_dots";
  require_between(what, "num_pairs", task.num_pairs, 0, INT32_MAX);
  require_between(what, "num_parts", task.num_parts, 0, INT32_MAX);
  if (task.num_pairs == 0) {
    return;
  }
  require_pointer(what, "parts", task.parts);
  require_pointer(what, "to", task.to);
  launch_overlapped(what, sum_kernel, {blocks_for(task.num_pairs), kThreads}, stream, task);
}

}  // namespace coterie::kernels::cuda
