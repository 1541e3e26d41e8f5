// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/product_epilogue.cuh"

/// Private to the room: the grouped product on Hopper.
///
/// A persistent block of three warpgroups. The producer keeps a ring of stages full: 64 columns of
/// 128 input rows, gathered by 16-byte copies (or by TMA where rows lie in order), and of 256
/// weight rows by TMA. Two consumers multiply 64 rows each with all 256 weight rows. Gated, the 256
/// rows are 128 gate rows and the 128 up rows that belong to them, so that the activation happens
/// in registers and no second copy of the weights exists.
///
/// Sums run along K in one order whatever the tile, so a row's bits depend on that row and the
/// weights alone.
namespace coterie::kernels::cuda {

/// Loads the weights of one stage; one thread.
template <typename Shape>
__device__ inline void load_weights(const CUtensorMap& map, const Tile& tile, int k,
                                    std::uint32_t to, std::uint32_t full, int rank) {
  const int row = tile.block * Shape::kTileColumns;
  if (Shape::kCluster > 1 && tile.shared) {
    load_box_to_all(to + rank * Shape::kHalfBytes, &map, full, (1U << Shape::kCluster) - 1U, k,
                    Shape::kGated ? row : row + Shape::kHalfRows * rank, Shape::kGated ? rank : 0,
                    tile.expert);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load_box(to + half * Shape::kHalfBytes, &map, full, k,
             Shape::kGated ? row : row + Shape::kHalfRows * half, Shape::kGated ? half : 0,
             tile.expert);
  }
}

template <typename Shape>
__device__ inline void produce(const CUtensorMap& x_map, const CUtensorMap& w_map,
                               const ProductArguments& task, std::uint32_t shared, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int first_row = thread / 8;  // this thread copies rows first_row + 16 i
  const int chunk = thread % 8;
  const std::uint32_t offset = first_row * 128 + ((chunk ^ (first_row & 7)) << 4);
  TileWalk<Shape::kCluster> walk(task.offsets, task.num_experts,
                                 (task.columns + Shape::kTileColumns - 1) / Shape::kTileColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / Shape::kCluster;
  int num_early = 0;  // stages whose weights are on their way already
  for (int unit = static_cast<int>(blockIdx.x) / Shape::kCluster; walk.find(unit, rank, tile);
       unit += step) {
    if (!Shape::kGather && task.early && unit < step) {
      if (thread == 0) {
        for (; num_early < Shape::kStages && num_early * kDepthStep < task.depth; ++num_early) {
          const std::uint32_t stage_full = full + 8 * num_early;
          barrier_expect(stage_full, Shape::kStageBytes);
          load_weights<Shape>(w_map, tile, num_early * kDepthStep,
                              shared + num_early * Shape::kStageBytes + kInputBytes, stage_full,
                              rank);
        }
      }
      __syncwarp();
      begin_after_previous();
    }
    const char* source[8];
    if constexpr (Shape::kGather) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = first_row + 16 * i;
        source[i] = row < tile.num_rows ? task.x.row(task.row_of[tile.row + row]) : task.x.data[0];
      }
    }
    for (int k = 0; k < task.depth; k += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      if (Shape::kGather || thread == 0) {
        barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      }
      if (thread == 0 && num_early > 0) {
        --num_early;
        load_box(stage, &x_map, stage_full, k, tile.row);
      } else if (thread == 0) {
        barrier_expect(stage_full, Shape::kGather ? 2 * Shape::kHalfBytes : Shape::kStageBytes);
        load_weights<Shape>(w_map, tile, k, stage + kInputBytes, stage_full, rank);
        if constexpr (!Shape::kGather) {
          load_box(stage, &x_map, stage_full, k, tile.row);
        }
      }
      if constexpr (Shape::kGather) {
        const bool inside = k + chunk * 8 < task.depth;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const bool valid = inside && first_row + 16 * i < tile.num_rows;
          copy_16(stage + offset + i * 16 * 128,
                  valid ? source[i] + (k + chunk * 8) * 2 : task.x.data[0], valid);
        }
        arrive_when_copied(stage_full);
      }
      ring.advance();
    }
  }
  if (!Shape::kGather && task.early) {
    begin_after_previous();  // blocks without any tile, too
  }
}

/// A consumer warp has read a stage: tells every producer that may write into it.
template <typename Shape>
__device__ inline void release(std::uint32_t empty) {
  const std::uint32_t lane = threadIdx.x % 32;
  if constexpr (Shape::kCluster == 1) {
    if (lane == 0) {
      barrier_arrive(empty);
    }
  } else if (lane < Shape::kCluster) {
    barrier_arrive_at(empty, lane);
  }
}

template <typename Shape>
__device__ inline void consume(const ProductArguments& task, std::uint32_t shared, int rank) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int group_rows = warp / 4 * 64;
  const int first_row = warp * 16;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const std::uint32_t staging = shared + Shape::kStagingOffset + first_row * Shape::kPitch;
  TileWalk<Shape::kCluster> walk(task.offsets, task.num_experts,
                                 (task.columns + Shape::kTileColumns - 1) / Shape::kTileColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / Shape::kCluster;
  float d[Shape::kSums];
  for (int unit = static_cast<int>(blockIdx.x) / Shape::kCluster; walk.find(unit, rank, tile);
       unit += step) {
    if (group_rows >= tile.num_rows) {  // nothing of this tile is ours: hand the stages on
      for (int k = 0; k < task.depth; k += kDepthStep) {
        barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
        release<Shape>(empty + 8 * ring.stage);
        ring.advance();
      }
      continue;
    }
    int last_stage = -1;
    for (int k = 0; k < task.depth; k += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      if constexpr (Shape::kGather) {
        fence_to_async();
      }
      wgmma_fence();
      const std::uint64_t a = tile_descriptor(stage + group_rows * 128);
      const std::uint64_t b = tile_descriptor(stage + kInputBytes);
#pragma unroll
      for (int i = 0; i < kDepthStep / 16; ++i) {
        multiply(d, a + 2 * i, b + 2 * i, k > 0 || i > 0);
      }
      wgmma_commit();
      if (last_stage >= 0) {
        wgmma_wait<1>();
        release<Shape>(empty + 8 * last_stage);
      }
      last_stage = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    release<Shape>(empty + 8 * last_stage);
    store_rows<Shape>(d, {tile, first_row, staging}, task);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kProductThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ CUtensorMap w_map, const ProductArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const int rank = Shape::kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    if constexpr (!Shape::kGather) {
      prefetch_map(&x_map);
    }
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(full + 8 * s, Shape::kGather ? 129 : 1);
      barrier_init(full + 8 * (Shape::kStages + s), 8 * Shape::kCluster);
    }
    fence_barrier_init();
  }
  if constexpr (Shape::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  if (Shape::kGather || !task.early) {
    begin_after_previous();
  }
  if (threadIdx.x < 128) {
    lower_registers<56>();
    if (Shape::kGather || threadIdx.x < 32) {
      produce<Shape>(x_map, w_map, task, shared, rank);
    }
    __syncwarp();
  } else {
    raise_registers<224>();
    consume<Shape>(task, shared, rank);
  }
  if constexpr (Shape::kCluster > 1) {
    cluster_sync();  // the other block may still signal to this one's barriers
  }
}

}  // namespace coterie::kernels::cuda
