// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/product_generic.cuh"
#include "coterie/run/kernels/tile_walk.cuh"

/// The grouped product on any GPU from compute capability 8.0: mma.sync for bf16 and fp16, plain
/// multiply-adds for fp32. Sums run along K in one order, as on Hopper, but in other groups, so
/// bits differ between the two.
namespace coterie::kernels::cuda {
namespace {

template <typename T, bool kGated>
__global__ void __launch_bounds__(kThreads) mma_kernel(const GenericArguments task) {
  __shared__ __align__(128) T inputs[kStages][kTileRows * kStep];
  __shared__ __align__(128) T weights[kStages][kWeightRows * kStep];
  begin_after_previous();
  constexpr int kColumns = kGated ? kWeightRows / 2 : kWeightRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp_row = thread / 32 % 4 * 32;
  const int warp_column = thread / 128 * 64;
  const int chunk = thread % 4;  // this thread copies rows thread / 4 and thread / 4 + 64
  TileWalk<1> walk(task.offsets, task.num_experts, (task.columns + kColumns - 1) / kColumns);
  Tile tile;
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, 0, tile);
       unit += static_cast<int>(gridDim.x)) {
    const T* x_row[2];
    const T* w_row[2];
    const std::int64_t matrix =
        std::int64_t{kGated ? 2 : 1} * task.columns * task.depth * tile.expert;
    for (int i = 0; i < 2; ++i) {
      const int r = thread / 4 + 64 * i;
      const std::int64_t row = tile.row + r;
      x_row[i] = r < tile.num_rows ? input_row<T>(task, row) : nullptr;
      const std::int64_t w = weight_row<kGated>(r, tile.block, task.columns);
      w_row[i] = w >= 0 ? static_cast<const T*>(task.weights) + matrix + w * task.depth : nullptr;
    }
    const auto fetch = [&](int k, int stage) {
      const int from = k + chunk * 8;
      for (int i = 0; i < 2; ++i) {
        const int r = thread / 4 + 64 * i;
        const bool x_valid = x_row[i] != nullptr && from < task.depth;
        const bool w_valid = w_row[i] != nullptr && from < task.depth;
        copy_chunk(&inputs[stage][place(r, chunk)],
                   x_valid ? static_cast<const void*>(x_row[i] + from) : task.x.data[0], x_valid);
        copy_chunk(&weights[stage][place(r, chunk)], w_valid ? w_row[i] + from : task.weights,
                   w_valid);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float d[2][8][4] = {};
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // the last tile's stages are read, and none of its copies is under way
    for (int s = 0; s < kStages - 1; ++s) {
      fetch(s * kStep, s);
    }
    int stage = 0;
    for (int k = 0; k < task.depth; k += kStep) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();
      fetch(k + (kStages - 1) * kStep, (stage + kStages - 1) % kStages);
#pragma unroll
      for (int half = 0; half < kStep / 16; ++half) {
        std::uint32_t a[2][4];
        for (int m = 0; m < 2; ++m) {
          load_matrices(a[m],
                        &inputs[stage][place(warp_row + 16 * m + lane % 16, 2 * half + lane / 16)]);
        }
        for (int n = 0; n < 4; ++n) {
          std::uint32_t b[4];
          load_matrices(b, &weights[stage][place(warp_column + 16 * n + lane % 8 + lane / 16 * 8,
                                                 2 * half + lane / 8 % 2)]);
          for (int m = 0; m < 2; ++m) {
            multiply(d[m][2 * n], a[m], b[0], b[1], T{});
            multiply(d[m][2 * n + 1], a[m], b[2], b[3], T{});
          }
        }
      }
      stage = (stage + 1) % kStages;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int r = warp_row + 16 * m + lane / 4 + 8 * pair;
        if (r >= tile.num_rows) {
          continue;
        }
        const std::int64_t row = std::int64_t{tile.row} + r;
#pragma unroll
        for (int n = 0; n < (kGated ? 4 : 8); ++n) {
          const int column = tile.block * kColumns + (kGated ? warp_column / 2 : warp_column) +
                             8 * n + lane % 4 * 2;
          if (column < task.columns) {
            const int other = (n + 4) % 8;
            store_pair<T, kGated>(task, {tile.expert, row, column},
                                  {d[m][n][2 * pair], d[m][n][2 * pair + 1]},
                                  {d[m][other][2 * pair], d[m][other][2 * pair + 1]});
          }
        }
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// Finishes one column in fp32.
template <bool kGated>
__device__ void store_float(const GenericArguments& task, const Place& at, float sum, float up) {
  float* const pre = task.pre.data == nullptr ? nullptr : task.pre.row<float>(at.row) + at.column;
  sum = kGated ? sum : with_bias<float>(task, at, sum);
  if (pre != nullptr) {
    pre[0] = sum;
  }
  if (kGated && pre != nullptr) {
    pre[task.columns] = up;
  }
  if (kGated) {
    sum = silu(sum) * up;
  } else if (task.row_of != nullptr) {
    sum = activate(sum, task.activation);
  }
  task.y.row<float>(at.row)[at.column] = sum;
}

/// fp32: one thread a column of eight rows; slow, for tests and odd machines.
template <bool kGated>
__global__ void __launch_bounds__(kThreads) float_kernel(const GenericArguments task) {
  begin_after_previous();
  constexpr int kRows = 8;
  __shared__ float inputs[kRows][kStep];
  TileWalk<1> walk(task.offsets, task.num_experts, (task.columns + kThreads - 1) / kThreads);
  Tile tile;
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, 0, tile);
       unit += static_cast<int>(gridDim.x)) {
    const int column = tile.block * kThreads + static_cast<int>(threadIdx.x);
    const std::int64_t first = std::int64_t{tile.expert} * (kGated ? 2 : 1) * task.columns;
    const bool live = column < task.columns;
    const float* const w =
        static_cast<const float*>(task.weights) + (first + (live ? column : 0)) * task.depth;
    const float* const up = w + std::int64_t{kGated ? task.columns : 0} * task.depth;
    for (int r0 = 0; r0 < tile.num_rows; r0 += kRows) {
      float sum[kRows] = {};
      float up_sum[kRows] = {};
      for (int k0 = 0; k0 < task.depth; k0 += kStep) {
        __syncthreads();
        const int r = r0 + static_cast<int>(threadIdx.x) / kStep;
        const int k = k0 + static_cast<int>(threadIdx.x) % kStep;
        const std::int64_t row = tile.row + r;
        const bool valid = r < tile.num_rows && k < task.depth;
        inputs[threadIdx.x / kStep][threadIdx.x % kStep] =
            valid ? input_row<float>(task, row)[k] : 0.0F;
        __syncthreads();
        const int last = min(kStep, task.depth - k0);
        for (int j = 0; j < last; ++j) {
          for (int i = 0; i < kRows; ++i) {
            sum[i] += inputs[i][j] * w[k0 + j];
            up_sum[i] += kGated ? inputs[i][j] * up[k0 + j] : 0.0F;
          }
        }
      }
      for (int i = 0; i < kRows && live; ++i) {
        if (r0 + i < tile.num_rows) {
          store_float<kGated>(task, {tile.expert, std::int64_t{tile.row} + r0 + i, column}, sum[i],
                              up_sum[i]);
        }
      }
    }
  }
}

}  // namespace

void grouped_product_generic(const GroupedProduct& task, Stream stream) {
  const bool gated = task.gated();
  const GenericArguments arguments{task.x,
                                   task.row_of,
                                   task.offsets,
                                   task.weights,
                                   task.bias,
                                   static_cast<int>(task.num_experts),
                                   static_cast<int>(task.depth),
                                   static_cast<int>(task.columns),
                                   task.activation,
                                   task.y.type == DType::kFloat32,
                                   row_target(task.y),
                                   row_target(task.pre)};
  const std::int64_t width = task.type == DType::kFloat32 ? kThreads
                             : gated                      ? kWeightRows / 2
                                                          : kWeightRows;
  const std::int64_t tiles =
      (task.max_rows / kTileRows + task.num_experts) * divide_up(task.columns, width);
  const auto blocks =
      static_cast<unsigned>(std::min(tiles, std::int64_t{2} * current_device().num_processors));
  void (*kernel)(GenericArguments) = nullptr;
  switch (task.type) {
    case DType::kFloat32: kernel = gated ? float_kernel<true> : float_kernel<false>; break;
    case DType::kFloat16:
      kernel = gated ? mma_kernel<__half, true> : mma_kernel<__half, false>;
      break;
    default: kernel = gated ? mma_kernel<__nv_bfloat16, true> : mma_kernel<__nv_bfloat16, false>;
  }
  launch_overlapped("grouped product, generic kernel", kernel, {blocks, kThreads}, stream,
                    arguments);
}

}  // namespace coterie::kernels::cuda
