// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "coterie/run/kernels/backward_hopper.cuh"
#include "coterie/run/kernels/gradient_walk.cuh"
#include "coterie/run/kernels/patches.cuh"

/// Private to the room: how tiles of weight gradients leave a consumer warpgroup, which holds 64
/// columns of `a` by 2 * kSums columns of `b`.
namespace coterie::kernels::cuda {

/// How results leave.
enum class Leave { kRounded, kAddRounded, kFloat };

/// What a warpgroup needs to get rid of its sums.
struct GradientExit {
  int group;              // which of the two warpgroups
  std::uint32_t staging;  // this warpgroup's, kPatchesBytes
};

/// Writes one result, or adds it to what is there.
__device__ inline void put(float* to, float value, bool accumulate) {
  *to = accumulate ? *to + value : value;
}
__device__ inline void put(__nv_bfloat16* to, float value, bool accumulate) {
  *to = __float2bfloat16_rn(accumulate ? __bfloat162float(*to) + value : value);
}

/// Results straight from registers: fp32, or added to what is there.
template <typename Out, bool kTransposed, int kSums>
__device__ inline void store_directly(const float (&d)[kSums], const GradientTile& tile,
                                      const GradientExit& exit,
                                      const WeightGradientArguments& task) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  Out* const out =
      static_cast<Out*>(task.out) + std::int64_t{tile.expert} * task.a_columns * task.b_columns;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int a = tile.a_column + exit.group * 64 + thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
    const int b = tile.b_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (a < task.a_columns && b < task.b_columns) {
      put(out + (kTransposed ? std::int64_t{b} * task.a_columns + a
                             : std::int64_t{a} * task.b_columns + b),
          d[i], task.accumulate);
    }
  }
}

template <bool kTransposed, Leave kLeave, int kSums>
__device__ inline void store_gradient(const float (&d)[kSums], const GradientTile& tile,
                                      const GradientExit& exit, const CUtensorMap& out_map,
                                      const WeightGradientArguments& task) {
  if constexpr (kLeave == Leave::kFloat) {
    store_directly<float, kTransposed>(d, tile, exit, task);
  } else if constexpr (kLeave == Leave::kAddRounded) {
    store_directly<__nv_bfloat16, kTransposed>(d, tile, exit, task);
  } else {
    const int a_column = tile.a_column + exit.group * 64;
    store_patches<kTransposed>(d, {out_map, exit.group, exit.staging},
                               kTransposed ? a_column : tile.b_column,
                               kTransposed ? tile.b_column : a_column, tile.expert);
  }
}

}  // namespace coterie::kernels::cuda
