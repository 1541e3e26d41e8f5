// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include <cstdint>

#include "coterie/run/kernels/kernels_decoder_cuda.hpp"
#include "coterie/run/kernels/numbers.cuh"

namespace coterie::kernels::cuda {
namespace {

/// The highest of some numbers, and the sum of exp(number - highest).
struct HighestAndSum {
  float highest;
  float sum;
};

__device__ HighestAndSum joined(const HighestAndSum& a, const HighestAndSum& b) {
  const float highest = fmaxf(a.highest, b.highest);
  if (highest == -INFINITY) {
    return {highest, 0.0F};
  }
  return {highest, a.sum * expf(a.highest - highest) + b.sum * expf(b.highest - highest)};
}

/// Of all threads of the block, in one order.
template <int kThreads>
__device__ HighestAndSum joined_over_block(HighestAndSum mine) {
  __shared__ HighestAndSum of_warp[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    const HighestAndSum other{__shfl_xor_sync(0xFFFFFFFFU, mine.highest, distance),
                              __shfl_xor_sync(0xFFFFFFFFU, mine.sum, distance)};
    mine = joined(mine, other);
  }
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  HighestAndSum all = of_warp[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) {
    all = joined(all, of_warp[warp]);
  }
  return all;
}

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(T* logits, std::int64_t stride, std::int64_t num_words,
                         const std::int64_t* targets, float* loss, bool with_gradient) {
  using Group = Numbers<T, kWidth>;
  T* const row = logits + std::int64_t{blockIdx.x} * stride;
  const std::int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0.0F;
    }
    Group zeros;
    for (int i = 0; i < kWidth; ++i) {
      zeros.set(i, 0.0F);
    }
    for (std::int64_t v = threadIdx.x * kWidth; with_gradient && v < num_words;
         v += kThreads * kWidth) {
      zeros.store(row + v);
    }
    return;
  }
  HighestAndSum mine{-INFINITY, 0.0F};
  for (std::int64_t v = threadIdx.x * kWidth; v < num_words; v += kThreads * kWidth) {
    const Group group = Group::load(row + v);
    float highest = mine.highest;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      highest = fmaxf(highest, group.get(i));
    }
    if (highest > mine.highest) {
      mine.sum *= expf(mine.highest - highest);
      mine.highest = highest;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      // A NaN must reach the loss, though fmaxf passes it over.
      mine.sum += group.get(i) == -INFINITY ? 0.0F : expf(group.get(i) - mine.highest);
    }
  }
  const HighestAndSum all = joined_over_block<kThreads>(mine);
  const float log_sum = all.highest + logf(all.sum);
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = log_sum - Numbers<T, 1>::load(row + target).get(0);
  }
  if (!with_gradient) {
    return;
  }
  __syncthreads();  // the target's logit has been read
  for (std::int64_t v = threadIdx.x * kWidth; v < num_words; v += kThreads * kWidth) {
    Group group = Group::load(row + v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      group.set(i, expf(group.get(i) - log_sum) - (v + i == target ? 1.0F : 0.0F));
    }
    group.store(row + v);
  }
}

template <typename T, int kWidth, int kThreads>
void launch(const CrossEntropy& task, Stream stream) {
  cross_entropy_kernel<T, kWidth, kThreads>
      <<<static_cast<unsigned>(task.logits.rows), kThreads, 0, stream>>>(
          static_cast<T*>(task.logits.data), task.logits.row_stride, task.logits.columns,
          task.targets, task.loss, task.with_gradient);
  require_launch("cross_entropy");
}

template <typename T>
void cross_entropy_of(const CrossEntropy& task, Stream stream) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  constexpr std::int64_t kManyWords = 8192;
  const bool wide = task.logits.columns % kWide == 0 && are_aligned(task.logits, 16);
  const bool many = task.logits.columns > kManyWords;
  if (wide && many) {
    launch<T, kWide, 1024>(task, stream);
  } else if (wide) {
    launch<T, kWide, 256>(task, stream);
  } else {
    launch<T, 1, 1024>(task, stream);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& task, Stream stream) {
  const char* const what = "cross_entropy";
  require_between(what, "rows of logits", task.logits.rows, 0, INT32_MAX);
  require_between(what, "columns of logits", task.logits.columns, 1, INT32_MAX);
  if (task.logits.rows == 0) {
    return;
  }
  require_pointer(what, "logits", task.logits.data);
  require_pointer(what, "targets", task.targets);
  require_pointer(what, "loss", task.loss);
  if (task.logits.type == DType::kBfloat16) {
    cross_entropy_of<__nv_bfloat16>(task, stream);
  } else {
    COTERIE_REQUIRE(task.logits.type == DType::kFloat32, what, ": logits must be bf16 or fp32");
    cross_entropy_of<float>(task, stream);
  }
}

}  // namespace coterie::kernels::cuda
