// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "coterie/run/kernels/patches.cuh"
#include "coterie/run/kernels/row_source.cuh"
#include "coterie/run/kernels/tile_walk.cuh"

/// Private to the room: gradients of rows on Hopper: dL/d(input) = dL/d(output) times the weights,
/// which lie with K outside ([K, N] a matrix) and are read as they are.
///
/// The block is that of product_hopper.cuh: a producer warpgroup keeps four stages of 128 rows and
/// 256 weight columns full, two consumers multiply 64 rows each.
namespace coterie::kernels::cuda {

struct RowGradientArguments {
  const std::int32_t* offsets;
  int num_experts;
  int depth;
  int columns;
  RowTarget y;
  Watchdog watchdog;
};

struct RowGradientShape {
  static constexpr int kStages = 4;
  static constexpr int kColumns = 256;  // of a tile
  static constexpr int kStageBytes = kInputBytes + 4 * kGroupBytes;
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kWarpBytes = 16 * (256 + 16);  // of staging
  static constexpr int kGroupStaging = 4 * kWarpBytes;
  static constexpr int kBarrierOffset = kStagingOffset + 8 * kWarpBytes;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than a block can have");
  static_assert(kGroupStaging % 1024 == 0 && kGroupStaging >= kPatchesBytes, "patches fit");
};

/// Loads the weights of one stage, `groups` (2 or 4) of 64 columns; one thread.
__device__ inline void load_weight_columns(const CUtensorMap& map, const Tile& tile, int k,
                                           std::uint32_t to, std::uint32_t full, int rank,
                                           int groups = 4) {
  const int first = tile.block * 256;
  if (tile.shared) {
    for (int g = groups / 2 * rank; g < groups / 2 * (rank + 1); ++g) {
      load_box_to_all(to + g * kGroupBytes, &map, full, 3, first + 64 * g, k, 0, tile.expert);
    }
    return;
  }
  for (int g = 0; g < groups; ++g) {
    load_box(to + g * kGroupBytes, &map, full, first + 64 * g, k, 0, tile.expert);
  }
}

/// One warp; its first lane loads.
__device__ inline void produce_rows(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                    const RowGradientArguments& task, std::uint32_t shared,
                                    int rank) {
  using Shape = RowGradientShape;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  TileWalk<2> walk(task.offsets, task.num_experts,
                   (task.columns + Shape::kColumns - 1) / Shape::kColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    for (int k = 0; k < task.depth && threadIdx.x == 0; k += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      barrier_expect(stage_full, Shape::kStageBytes);
      load_weight_columns(w_map, tile, k, stage + kInputBytes, stage_full, rank);
      load_box(stage, &x_map, stage_full, k, tile.row, 0, 0);
      ring.advance();
    }
    __syncwarp();
  }
}

/// Multiplies 64 rows of a tile with its 256 weight columns.
__device__ inline void multiply_rows(float (&d)[128], int group_rows,
                                     const RowGradientArguments& task, std::uint32_t shared,
                                     Ring<RowGradientShape::kStages>& ring) {
  using Shape = RowGradientShape;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  int last_stage = -1;
  for (int k = 0; k < task.depth; k += kDepthStep) {
    const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
    barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
    wgmma_fence();
    const std::uint64_t a = tile_descriptor(stage + group_rows * 128);
    const std::uint64_t b = columns_descriptor(stage + kInputBytes, kGroupBytes);
#pragma unroll
    for (int i = 0; i < kDepthStep / 16; ++i) {
      multiply<0, 1>(d, a + 2 * i, b + 128 * i, k > 0 || i > 0);
    }
    wgmma_commit();
    if (last_stage >= 0) {
      wgmma_wait<1>();
      release_stage(empty + 8 * last_stage);
    }
    last_stage = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  release_stage(empty + 8 * last_stage);
}

/// The sums leave: by the copy engine, or, where the tile has fewer rows than the warpgroup, by the
/// threads.
__device__ inline void store_row_sums(const float (&d)[128], const Tile& tile,
                                      const CUtensorMap& y_map, const RowGradientArguments& task,
                                      std::uint32_t shared) {
  using Shape = RowGradientShape;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int group = warp / 4;
  const std::uint32_t staging = shared + Shape::kStagingOffset + group * Shape::kGroupStaging;
  const int column = tile.block * Shape::kColumns;
  if (tile.idle) {
    return;
  }
  if (group * 64 + 64 <= tile.num_rows) {
    store_patches<false>(d, {y_map, group, staging}, column, tile.row + group * 64, 0);
    return;
  }
  empty_patches(group);
  const std::int64_t row = std::int64_t{tile.row} + warp * 16;
  store_row_block(
      d, staging + warp % 4 * Shape::kWarpBytes,
      {task.y.data + row * task.y.stride_bytes + std::int64_t{column} * 2, task.y.stride_bytes},
      tile.num_rows - warp * 16, task.columns - column);
}

__device__ inline void consume_rows(const CUtensorMap& y_map, const RowGradientArguments& task,
                                    std::uint32_t shared, int rank) {
  using Shape = RowGradientShape;
  const int group_rows = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  TileWalk<2> walk(task.offsets, task.num_experts,
                   (task.columns + Shape::kColumns - 1) / Shape::kColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  float d[128];
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    if (group_rows >= tile.num_rows) {  // nothing of this tile is ours: hand the stages on
      for (int k = 0; k < task.depth; k += kDepthStep) {
        barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
        release_stage(empty + 8 * ring.stage);
        ring.advance();
      }
      continue;
    }
    multiply_rows(d, group_rows, task, shared, ring);
    store_row_sums(d, tile, y_map, task, shared);
  }
  if (threadIdx.x % 128 == 0) {
    wait_for_stores();
  }
}

__global__ void __launch_bounds__(kProductThreads, 1)
    row_gradient_kernel(const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ CUtensorMap y_map,
                        const __grid_constant__ RowGradientArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    prefetch_map(&x_map);
    init_ring<RowGradientShape::kStages>(shared + RowGradientShape::kBarrierOffset, 1);
  }
  cluster_sync();
  begin_after_previous();
  if (threadIdx.x < 128) {
    lower_registers<56>();
    if (threadIdx.x < 32) {
      produce_rows(x_map, w_map, task, shared, rank);
    }
    __syncwarp();
  } else {
    raise_registers<224>();
    consume_rows(y_map, task, shared, rank);
  }
  cluster_sync();  // the other block may still signal to this one's barriers
}

}  // namespace coterie::kernels::cuda
