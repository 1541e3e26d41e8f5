// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/activation.cuh"
#include "coterie/run/kernels/mma.cuh"
#include "coterie/run/kernels/product_cuda.hpp"

/// Private to the room: arguments of the generic grouped product, and how its sums leave.
namespace coterie::kernels::cuda {

constexpr int kThreads = 256;
constexpr int kWeightRows = 128;  // gated: 64 gate rows and the 64 up rows that belong to them
constexpr int kStep = 32;         // elements of K a stage
constexpr int kStages = 3;

struct GenericArguments {
  RowSource x;
  const std::int32_t* row_of;  // null: row r
  const std::int32_t* offsets;
  const void* weights;
  const void* bias;  // [E, columns] or null; ungated only
  int num_experts;
  int depth;
  int columns;
  Activation activation;  // of ungated products that gather
  bool float_sums;        // y is fp32
  RowTarget y;
  RowTarget pre;  // what the activation is given; null data: not kept
};

/// Where input row `row` of a segment begins.
template <typename T>
__device__ inline const T* input_row(const GenericArguments& task, std::int64_t row) {
  return reinterpret_cast<const T*>(task.x.row(task.row_of != nullptr ? task.row_of[row] : row));
}

__device__ inline std::uint32_t address_of(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void copy_chunk(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address_of(from))
               : "memory");
}

__device__ inline void store_two(__nv_bfloat16* to, float low, float high) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(low, high);
}
__device__ inline void store_two(__half* to, float low, float high) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(low, high);
}

/// Where a sum belongs.
struct Place {
  int expert;
  std::int64_t row;
  int column;
};

/// A sum plus its bias.
template <typename T>
__device__ inline float with_bias(const GenericArguments& task, const Place& at, float sum) {
  return task.bias == nullptr
             ? sum
             : sum + to_float(static_cast<const T*>(
                         task.bias)[std::int64_t{at.expert} * task.columns + at.column]);
}

/// Finishes two neighbouring columns; gated, `sums` are the gate's and `up` those that belong to
/// them.
template <typename T, bool kGated>
__device__ inline void store_pair(const GenericArguments& task, const Place& at, float2 sums,
                                  float2 up) {
  T* const pre = task.pre.data == nullptr ? nullptr : task.pre.row<T>(at.row) + at.column;
  if (kGated) {
    if (pre != nullptr) {
      store_two(pre, sums.x, sums.y);
      store_two(pre + task.columns, up.x, up.y);
    }
    sums = {silu(sums.x) * up.x, silu(sums.y) * up.y};
  } else {
    sums = {with_bias<T>(task, at, sums.x),
            with_bias<T>(task, {at.expert, at.row, at.column + 1}, sums.y)};
    if (pre != nullptr) {
      store_two(pre, sums.x, sums.y);
    }
    if (task.row_of != nullptr) {
      sums = {activate(sums.x, task.activation), activate(sums.y, task.activation)};
    }
  }
  if (task.float_sums) {
    *reinterpret_cast<float2*>(task.y.row<float>(at.row) + at.column) = sums;
  } else {
    store_two(task.y.row<T>(at.row) + at.column, sums.x, sums.y);
  }
}

/// Weight row that stands in row `r` of a tile: gated, each group of 64 holds 32 gate rows and
/// their 32 up rows, so that one warp has both. -1 past the last column.
template <bool kGated>
__device__ inline int weight_row(int r, int block, int columns) {
  if (!kGated) {
    const int row = block * kWeightRows + r;
    return row < columns ? row : -1;
  }
  const int column = block * (kWeightRows / 2) + r / 64 * 32 + r % 32;
  return column < columns ? column + (r / 32 % 2) * columns : -1;
}

/// Place of chunk `chunk` of row `r` in a stage: the swizzle keeps ldmatrix free of conflicts.
__device__ inline int place(int r, int chunk) {
  return r * kStep + ((chunk ^ (r / 2 & 3)) * 8);
}

}  // namespace coterie::kernels::cuda
