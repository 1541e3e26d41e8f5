// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/activation.cuh"
#include "coterie/run/kernels/product_shape.cuh"
#include "coterie/run/kernels/tma.cuh"
#include "coterie/run/kernels/wgmma.cuh"

/// Private to the room: how a consumer of the grouped product on Hopper gets rid of its sums.
namespace coterie::kernels::cuda {

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

/// The 16 rows of a tile that a warp holds, and its shared memory to stage them.
struct WarpRows {
  const Tile& tile;
  int first_row;
  std::uint32_t staging;
};

/// Sends the staged rows out in pieces of 16 bytes, whole rows at a time. (A bulk copy a row takes
/// less code, and thousands of cycles of the consumer more.)
template <typename Shape>
__device__ inline void send_rows(const WarpRows& rows, const RowTarget& to,
                                 std::int64_t offset_bytes, int num_bytes) {
  constexpr int kPieces = Shape::kPassColumns * 2 / 16;  // of a row
  constexpr int kStep = 32 / kPieces;                    // rows that the warp sends at a time
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int byte = lane % kPieces * 16;
  const int row = rows.first_row + lane / kPieces;
  const int last = byte < num_bytes && !rows.tile.idle ? rows.tile.num_rows : 0;
  char* target =
      to.data + (std::int64_t{rows.tile.row} + row) * to.stride_bytes + offset_bytes + byte;
  const std::uint32_t from = rows.staging + lane / kPieces * Shape::kPitch + byte;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i += kStep) {
    if (row + i < last) {
      *reinterpret_cast<uint4*>(target) = load_piece(from + i * Shape::kPitch);
    }
    target += kStep * to.stride_bytes;
  }
}

/// Rounds kPassColumns neighbouring columns, sums d[first] on, and sends them to columns `column`
/// on of `num_columns`.
template <typename Shape>
__device__ inline void store_bf16(const float (&d)[Shape::kSums], int first, const WarpRows& rows,
                                  const RowTarget& to, int column, int num_columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t address =
      rows.staging + ((lane / 8 & 1) * 8 + lane % 8) * Shape::kPitch + (lane / 16) * 16;
  __syncwarp();  // what was staged before is sent
#pragma unroll
  for (int j = 0; j < Shape::kPassColumns / 8; j += 2) {
    const int i = first + 4 * j;
    store_matrices(address + j * 16, pack(d[i], d[i + 1]), pack(d[i + 2], d[i + 3]),
                   pack(d[i + 4], d[i + 5]), pack(d[i + 6], d[i + 7]));
  }
  send_rows<Shape>(rows, to, std::int64_t{column} * 2,
                   min(Shape::kPassColumns, num_columns - column) * 2);
}

/// As store_bf16, half as many columns, not rounded.
template <typename Shape>
__device__ inline void store_float(const float (&d)[Shape::kSums], int first, const WarpRows& rows,
                                   const RowTarget& to, int column, int num_columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t address = rows.staging + lane / 4 * Shape::kPitch + lane % 4 * 8;
  __syncwarp();  // what was staged before is sent
#pragma unroll
  for (int j = 0; j < Shape::kPassColumns / 16; ++j) {
    const int i = first + 4 * j;
    store_two_floats(address + j * 32, d[i], d[i + 1]);
    store_two_floats(address + j * 32 + 8 * Shape::kPitch, d[i + 2], d[i + 3]);
  }
  send_rows<Shape>(rows, to, std::int64_t{column} * 4,
                   min(Shape::kPassColumns / 2, num_columns - column) * 4);
}

/// Adds the bias of the tile's columns.
template <typename Shape>
__device__ inline void add_bias(float (&d)[Shape::kSums], const Tile& tile,
                                const ProductArguments& task) {
  const __nv_bfloat16* const bias = task.bias + std::int64_t{tile.expert} * task.columns;
  const int first = tile.block * Shape::kTileColumns + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int j = 0; j < Shape::kSums / 4; ++j) {
    const int column = first + 8 * j;
    if (column < task.columns) {
      const float2 two =
          __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(bias + column));
      d[4 * j] += two.x;
      d[4 * j + 1] += two.y;
      d[4 * j + 2] += two.x;
      d[4 * j + 3] += two.y;
    }
  }
}

/// Bias, activation, rounding: a warp's 16 rows leave.
template <typename Shape>
__device__ inline void store_rows(float (&d)[Shape::kSums], const WarpRows& rows,
                                  const ProductArguments& task) {
  const int column = rows.tile.block * Shape::kTileColumns;
  if constexpr (Shape::kGated) {
    if (task.pre.data != nullptr) {
      store_bf16<Shape>(d, 0, rows, task.pre, column, task.columns);
      const RowTarget up{task.pre.data + std::int64_t{task.columns} * 2, task.pre.stride_bytes};
      store_bf16<Shape>(d, Shape::kSums / 2, rows, up, column, task.columns);
    }
#pragma unroll
    for (int i = 0; i < Shape::kSums / 2; ++i) {
      d[i] = silu(d[i]) * d[Shape::kSums / 2 + i];
    }
  } else {
    if (task.bias != nullptr) {
      add_bias<Shape>(d, rows.tile, task);
    }
  }
  constexpr int kPasses = Shape::kTileColumns / Shape::kPassColumns;
  constexpr int kPassSums = Shape::kPassColumns / 2;
  if constexpr (!Shape::kGated && Shape::kGather) {
    if (task.pre.data != nullptr) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        store_bf16<Shape>(d, pass * kPassSums, rows, task.pre, column + pass * Shape::kPassColumns,
                          task.columns);
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      d[i] = activate(d[i], task.activation);
    }
  }
  if constexpr (!Shape::kGather) {
    if (task.float_sums) {
#pragma unroll
      for (int pass = 0; pass < 2 * kPasses; ++pass) {
        store_float<Shape>(d, pass * kPassSums / 2, rows, task.y,
                           column + pass * Shape::kPassColumns / 2, task.columns);
      }
      return;
    }
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    store_bf16<Shape>(d, pass * kPassSums, rows, task.y, column + pass * Shape::kPassColumns,
                      task.columns);
  }
}

}  // namespace coterie::kernels::cuda
