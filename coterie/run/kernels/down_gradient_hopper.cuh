// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/row_gradient_hopper.cuh"
#include "coterie/run/kernels/waiting_rows.cuh"

/// Private to the room: the row gradient of the down-projection on Hopper, taken through the
/// activation (waiting_rows.cuh) while the next tile is computed. Where 128 columns or fewer are
/// left, narrow tiles of 128 take them, in a kernel of their own that runs beside the other one.
///
/// Rows are gathered by 16-byte copies and come later than weights, which the copy engine brings:
/// so there are four stages of rows, three of weights, filled one step later.
namespace coterie::kernels::cuda {

template <bool kGated_, bool kNarrow_>
struct DownGradientShape {
  static constexpr bool kGated = kGated_;
  static constexpr bool kNarrow = kNarrow_;
  static constexpr int kGroups = kNarrow ? 2 : 4;  // of 64 columns, of a tile
  static constexpr int kSums = 32 * kGroups;       // of a thread
  static constexpr int kStages = 4;
  static constexpr int kWeightStages = 3;
  static constexpr int kWeightBytes = kGroups * kGroupBytes;
  static constexpr int kWeightsOffset = kStages * kInputBytes;
  static constexpr int kStagingOffset = kWeightsOffset + kWeightStages * kWeightBytes;
  static constexpr int kWarpBytes = 16 * 512;  // of staging
  static constexpr int kBarrierOffset = kStagingOffset + 8 * kWarpBytes;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than a block can have");

  /// Stage of the weights after `stage`.
  static __device__ int next(int stage) { return stage + 1 == kWeightStages ? 0 : stage + 1; }
};

/// Weights that are still to be asked for: those of the step before the one whose rows are.
template <typename Shape>
struct PendingWeights {
  Tile tile;
  int k = -1;  // none
  std::uint32_t full = 0;
  int stage = 0;

  /// Asks for them; one thread.
  __device__ void load(const CUtensorMap& map, std::uint32_t shared, int rank) {
    if (k >= 0) {
      barrier_expect(full, Shape::kWeightBytes);
      load_weight_columns(map, tile, k,
                          shared + Shape::kWeightsOffset + stage * Shape::kWeightBytes, full, rank,
                          Shape::kGroups);
      stage = Shape::next(stage);
    }
  }
};

template <typename Shape>
__device__ inline void produce_down(const CUtensorMap& w_map, const DownGradientArguments& task,
                                    std::uint32_t shared, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int first_row = thread / 8;  // this thread copies rows first_row + 16 i
  const int chunk = thread % 8;
  const std::uint32_t offset = swizzled(first_row, chunk);
  TileWalk<2> walk(task.offsets, task.num_experts, task.num_blocks);
  Ring<Shape::kStages> ring;
  PendingWeights<Shape> weights;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    const char* source[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = first_row + 16 * i;
      const std::int64_t r = std::int64_t{tile.row} + row;
      source[i] = row < tile.num_rows
                      ? task.grad_y.row(task.row_of != nullptr ? task.row_of[r] : r) + chunk * 16
                      : nullptr;
    }
    for (int k = 0; k < task.depth; k += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * kInputBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      // Free: the rows of four steps ago, and with them the weights of that step, whose place those
      // of the step before this one take.
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      if (thread == 0) {
        weights.load(w_map, shared, rank);
        weights.tile = tile;
        weights.tile.block += task.first_block;
        weights.k = k;
        weights.full = stage_full;
      }
      const bool inside = k + chunk * 8 < task.depth;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool valid = inside && source[i] != nullptr;
        gather_16(stage + offset + i * 16 * 128, valid ? source[i] + k * 2 : task.grad_y.data[0],
                  valid);
      }
      arrive_when_copied(stage_full);
      ring.advance();
    }
  }
  if (thread == 0 && weights.k >= 0) {
    barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
    weights.load(w_map, shared, rank);
  }
}

/// Issues the products of one step. Each keeps the tensor cores busy for as long as a part of a
/// piece of other work takes, and the next cannot be issued much earlier: so the two alternate.
template <bool kBusy, typename Waiting>
__device__ inline void multiply_step(float (&d)[Waiting::kSums], std::uint64_t a, std::uint64_t b,
                                     bool keep, Waiting& waiting) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepthStep / 16; ++i) {
    multiply<0, 1>(d, a + 2 * i, b + 128 * i, keep || i > 0);
    if constexpr (kBusy) {
      waiting.work(i);
    }
  }
  wgmma_commit();
  if constexpr (kBusy) {
    waiting.leave();
  }
}

/// Where a consumer stands: the rings of rows and of weights.
template <typename Shape>
struct DownRings {
  Ring<Shape::kStages> rows;
  int weights = 0;  // stage

  __device__ void advance() {
    rows.advance();
    weights = Shape::next(weights);
  }
};

/// Multiplies 64 rows of a tile with its weight columns.
template <typename Shape>
__device__ inline void multiply_down(float (&d)[Shape::kSums], int group,
                                     const DownGradientArguments& task, std::uint32_t shared,
                                     DownRings<Shape>& rings,
                                     WaitingRows<Shape::kGated, Shape::kNarrow>& waiting) {
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  int last_stage = -1;
  for (int k = 0; k < task.depth; k += kDepthStep) {
    const int stage = rings.rows.stage;
    barrier_wait(full + 8 * stage, rings.rows.phase, task.watchdog);
    fence_to_async();
    const std::uint64_t a = tile_descriptor(shared + stage * kInputBytes + group * 64 * 128);
    const std::uint64_t b = columns_descriptor(
        shared + Shape::kWeightsOffset + rings.weights * Shape::kWeightBytes, kGroupBytes);
    if (waiting.has_piece(k)) {
      multiply_step<true>(d, a, b, k > 0, waiting);
    } else {
      multiply_step<false>(d, a, b, k > 0, waiting);
    }
    if (last_stage >= 0) {
      wgmma_wait<1>();
      release_stage(empty + 8 * last_stage);
    }
    last_stage = stage;
    rings.advance();
  }
  wgmma_wait<0>();
  release_stage(empty + 8 * last_stage);
}

template <typename Shape>
__device__ inline void consume_down(const DownGradientArguments& task, std::uint32_t shared,
                                    int rank) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int group = warp / 4;
  WaitingRows<Shape::kGated, Shape::kNarrow> waiting(
      task, shared + Shape::kStagingOffset + warp * Shape::kWarpBytes, group);
  TileWalk<2> walk(task.offsets, task.num_experts, task.num_blocks);
  DownRings<Shape> rings;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  float d[Shape::kSums];
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    if (group * 64 >= tile.num_rows) {  // nothing of this tile is ours: hand the stages on
      waiting.finish();
      const std::uint32_t full = shared + Shape::kBarrierOffset;
      for (int k = 0; k < task.depth; k += kDepthStep) {
        barrier_wait(full + 8 * rings.rows.stage, rings.rows.phase, task.watchdog);
        release_stage(full + 8 * (Shape::kStages + rings.rows.stage));
        rings.advance();
      }
      continue;
    }
    multiply_down<Shape>(d, group, task, shared, rings, waiting);
    waiting.finish();
    waiting.take(
        d, std::int64_t{tile.row} + warp * 16, tile.idle ? 0 : min(16, tile.num_rows - warp * 16),
        tile.idle ? 0 : min(16, tile.num_rows - group * 64), tile.block + task.first_block);
  }
  waiting.finish();
}

template <typename Shape>
__global__ void __launch_bounds__(kProductThreads, 1)
    down_gradient_kernel(const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ DownGradientArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    init_ring<Shape::kStages>(shared + Shape::kBarrierOffset, 129);
  }
  cluster_sync();
  if (!task.beside) {
    begin_after_previous();
  }
  if (threadIdx.x < 128) {
    lower_registers<56>();
    produce_down<Shape>(w_map, task, shared, rank);
    __syncwarp();
  } else {
    raise_registers<224>();
    consume_down<Shape>(task, shared, rank);
  }
  cluster_sync();  // the other block may still signal to this one's barriers
  if (task.beside) {
    begin_after_previous();
  }
}

}  // namespace coterie::kernels::cuda
