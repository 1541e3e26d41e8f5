// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/product_epilogue.cuh"

/// Private to the room: the grouped product on Hopper for experts with few rows.
///
/// The operands change sides: 64 weight rows are wgmma's fixed side and 8, 16 or 32 input rows its
/// narrow one, so that nearly all shared memory holds weights on their way, and tiles are small
/// enough to keep every processor reading from memory. Sums run along K in steps of 16 as in the
/// other kernel, and verify.py proves that a row gets the same bits from both.
namespace coterie::kernels::cuda {

constexpr int kFewThreads = 256;  // a producer warpgroup and a consumer
constexpr int kFewWeightRows = 64;
constexpr int kFewStep = 128;  // elements of K a stage: two halves of one swizzle width
constexpr int kFewHalfBytes = kFewWeightRows * 128;

template <bool kGated_, bool kGather_, int kRows_>
struct FewShape {
  static constexpr bool kGated = kGated_;
  static constexpr bool kGather = kGather_;
  static constexpr int kRows = kRows_;  // input rows a tile
  static constexpr int kTileColumns = kGated ? kFewWeightRows / 2 : kFewWeightRows;
  static constexpr int kInputOffset = 2 * kFewHalfBytes;
  static constexpr int kStageBytes = kInputOffset + 2 * kRows * 128;
  static constexpr int kStages = kRows == 8 ? 12 : kRows == 16 ? 11 : 9;
  static constexpr int kPitch = kTileColumns * 4 + 16;  // of a staged row of up to fp32
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + kRows * kPitch;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");
};

/// Loads the weights of one stage; one thread. Gated, groups of 8 gate rows and the 8 up rows that
/// belong to them alternate, so that one thread's sums hold both.
template <typename Shape>
__device__ inline void load_few_weights(const CUtensorMap& map, const Tile& tile, int k,
                                        std::uint32_t to, std::uint32_t full) {
  barrier_expect(full, 2 * kFewHalfBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // zeros past the end of K
    load_box(to + half * kFewHalfBytes, &map, full, k + half * (kFewStep / 2), 0, 0,
             tile.block * (Shape::kTileColumns / 8), tile.expert);
  }
}

template <typename Shape>
__device__ inline void produce_few(const CUtensorMap& w_map, const ProductArguments& task,
                                   std::uint32_t shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int first_row = thread / 16;  // this thread copies rows first_row + 8 i
  const int chunk = thread % 16;
  const std::uint32_t offset = Shape::kInputOffset + chunk / 8 * (Shape::kRows * 128) +
                               first_row * 128 + ((chunk % 8 ^ first_row) << 4);
  TileWalk<1, Shape::kRows> walk(task.offsets, task.num_experts,
                                 (task.columns + Shape::kTileColumns - 1) / Shape::kTileColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  int num_early = 0;  // stages whose weights are on their way already
  const int step = static_cast<int>(gridDim.x);
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, 0, tile); unit += step) {
    if (!Shape::kGather && task.early && unit < step) {
      for (; num_early < Shape::kStages && num_early * kFewStep < task.depth; ++num_early) {
        if (thread == 0) {
          load_few_weights<Shape>(w_map, tile, num_early * kFewStep,
                                  shared + num_early * Shape::kStageBytes, full + 8 * num_early);
        }
      }
      __syncwarp();
      begin_after_previous();
    }
    const char* source[Shape::kRows / 8];
#pragma unroll
    for (int i = 0; i < Shape::kRows / 8; ++i) {
      const int row = tile.row + first_row + 8 * i;
      source[i] = first_row + 8 * i >= tile.num_rows
                      ? nullptr
                      : task.x.row(Shape::kGather ? task.row_of[row] : row) + chunk * 16;
    }
    for (int k = 0; k < task.depth; k += kFewStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      if (num_early > 0) {
        --num_early;
      } else if (thread == 0) {
        load_few_weights<Shape>(w_map, tile, k, stage, stage_full);
      }
      const bool inside = k + chunk * 8 < task.depth;
#pragma unroll
      for (int i = 0; i < Shape::kRows / 8; ++i) {
        const bool valid = inside && source[i] != nullptr;
        copy_16(stage + offset + i * 8 * 128,
                valid ? source[i] + std::int64_t{k} * 2 : task.x.data[0], valid);
      }
      arrive_when_copied(stage_full);
      ring.advance();
    }
  }
  if (!Shape::kGather && task.early) {
    begin_after_previous();  // blocks without any tile, too
  }
}

/// Waits for the other threads of the consumer.
__device__ inline void consumer_sync() {
  asm volatile("bar.sync 1, 128;" ::: "memory");
}

/// Puts one finished element into the staged row.
template <typename Shape>
__device__ inline void stage_element(unsigned char* staging, int row, int column, float v,
                                     bool as_float) {
  unsigned char* const at = staging + row * Shape::kPitch;
  if (as_float) {
    reinterpret_cast<float*>(at)[column] = v;
  } else {
    reinterpret_cast<__nv_bfloat16*>(at)[column] = __float2bfloat16_rn(v);
  }
}

/// Bias, activation, rounding, and out: d[i] belongs to input row 8 (i / 4) + 2 (lane % 4) + i % 2.
template <typename Shape>
__device__ inline void store_few(float (&d)[Shape::kRows / 2], const Tile& tile,
                                 unsigned char* staging, const ProductArguments& task) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int warp_column = thread / 32 * (Shape::kTileColumns / 4) + lane / 4;
  const int first = tile.block * Shape::kTileColumns;
  float bias[2] = {};
  if (!Shape::kGated && task.bias != nullptr) {
    for (int h = 0; h < 2; ++h) {
      const int column = first + warp_column + 8 * h;
      bias[h] = column < task.columns
                    ? __bfloat162float(task.bias[std::int64_t{tile.expert} * task.columns + column])
                    : 0.0F;
    }
  }
  consumer_sync();  // the last tile has left the staging rows
#pragma unroll
  for (int i = 0; i < Shape::kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if constexpr (Shape::kGated) {
      if (i % 4 < 2) {
        stage_element<Shape>(staging, row, warp_column, silu(d[i]) * d[i + 2], false);
      }
    } else {
      float v = d[i];
      if (task.bias != nullptr) {
        v += bias[i / 2 % 2];
      }
      if constexpr (Shape::kGather) {
        v = activate(v, task.activation);
      }
      stage_element<Shape>(staging, row, warp_column + i / 2 % 2 * 8, v, task.float_sums);
    }
  }
  consumer_sync();
  const int width = task.float_sums ? 4 : 8;  // elements of 16 bytes
  const int chunks = Shape::kTileColumns / width;
  for (int i = thread; i < tile.num_rows * chunks; i += 128) {
    const int row = i / chunks;
    const int chunk = i % chunks;
    const int column = first + chunk * width;
    if (column < task.columns) {
      char* const to = task.y.data + (std::int64_t{tile.row} + row) * task.y.stride_bytes;
      *reinterpret_cast<uint4*>(to + std::int64_t{column} * (16 / width)) =
          *reinterpret_cast<const uint4*>(staging + row * Shape::kPitch + chunk * 16);
    }
  }
}

template <typename Shape>
__device__ inline void consume_few(const ProductArguments& task, std::uint32_t shared,
                                   unsigned char* staging) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  TileWalk<1, Shape::kRows> walk(task.offsets, task.num_experts,
                                 (task.columns + Shape::kTileColumns - 1) / Shape::kTileColumns);
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x);
  float d[Shape::kRows / 2];
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, 0, tile); unit += step) {
    int last_stage = -1;
    for (int k = 0; k < task.depth; k += kFewStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      fence_to_async();
      wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t a = tile_descriptor(stage + half * kFewHalfBytes);
        const std::uint64_t b =
            tile_descriptor(stage + Shape::kInputOffset + half * Shape::kRows * 128);
#pragma unroll
        for (int i = 0; i < kFewStep / 32; ++i) {
          multiply(d, a + 2 * i, b + 2 * i, k > 0 || half > 0 || i > 0);
        }
      }
      wgmma_commit();
      if (last_stage >= 0) {
        wgmma_wait<1>();
        if (first_lane) {
          barrier_arrive(empty + 8 * last_stage);
        }
      }
      last_stage = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    if (first_lane) {
      barrier_arrive(empty + 8 * last_stage);
    }
    store_few<Shape>(d, tile, staging, task);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_kernel(const __grid_constant__ CUtensorMap w_map, const ProductArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(full + 8 * s, 129);
      barrier_init(full + 8 * (Shape::kStages + s), 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (Shape::kGather || !task.early) {
    begin_after_previous();
  }
  if (threadIdx.x < 128) {
    produce_few<Shape>(w_map, task, shared);
  } else {
    consume_few<Shape>(task, shared, memory + Shape::kStagingOffset);
  }
}

}  // namespace coterie::kernels::cuda
