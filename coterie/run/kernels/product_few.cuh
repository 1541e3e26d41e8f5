// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/few_walk.cuh"
#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/product_epilogue.cuh"

/// Private to the room: the grouped product on Hopper for experts with few rows.
///
/// The operands change sides: 64 weight rows a consumer are wgmma's fixed side and 8, 16 or 32
/// input rows its narrow one, so that nearly all shared memory holds weights on their way, and
/// tiles are small enough to keep every processor reading from memory. One warp asks for weights,
/// four gather input rows, one or two warpgroups multiply. Sums run along K in steps of 16 as in
/// the other kernel, and verify.py proves that a row gets the same bits from both.
namespace coterie::kernels::cuda {

constexpr int kFewRows = 64;  // weight rows of a consumer

/// One consumer with long stages for few tiles; two, which share the input rows, for many.
template <bool kGated_, bool kGather_, int kRows_, int kConsumers_>
struct FewShape {
  static constexpr bool kGated = kGated_;
  static constexpr bool kGather = kGather_;
  static constexpr int kRows = kRows_;  // input rows a tile
  static constexpr int kConsumers = kConsumers_;
  static constexpr int kBoxes = kConsumers == 1 ? 4 : 1;  // swizzle widths of K a stage
  static constexpr int kStep = 64 * kBoxes;
  static constexpr int kThreads = 160 + 128 * kConsumers;
  static constexpr int kColumns = kGated ? kFewRows / 2 : kFewRows;  // of a consumer
  static constexpr int kTileColumns = kConsumers * kColumns;
  static constexpr int kBoxBytes = kConsumers * kFewRows * 128;
  static constexpr int kInputOffset = kBoxes * kBoxBytes;
  static constexpr int kStageBytes = kInputOffset + kBoxes * kRows * 128;
  static constexpr int kPitch = kColumns * 4 + 16;  // of a staged row of up to fp32
  static constexpr int kStagingBytes = kConsumers * kRows * kPitch;
  static constexpr int kStages = (232448 - kStagingBytes) / (kStageBytes + 16);
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + kStagingBytes;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");

  using Walk = FewWalk<kRows>;
  __device__ static int num_blocks(int columns) {
    return (columns + kTileColumns - 1) / kTileColumns;
  }
};

/// Keeps the ring full of weights; one warp. Gated, groups of 8 gate rows and the 8 up rows that
/// belong to them alternate, so that one thread's sums hold both. Zeros past the end of K.
template <typename Shape>
__device__ inline void load_few_weights(const CUtensorMap& map, const ProductArguments& task,
                                        std::uint32_t shared) {
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const bool first_lane = threadIdx.x % 32 == 0;
  typename Shape::Walk walk(task.offsets, task.num_experts, Shape::num_blocks(task.columns));
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x);
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, tile); unit += step) {
    const int group = tile.block * (Shape::kTileColumns / 8);
    for (int k = 0; k < task.depth; k += Shape::kStep) {
      if (first_lane) {
        const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
        const std::uint32_t stage_full = full + 8 * ring.stage;
        barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
        barrier_expect(stage_full, Shape::kBoxes * Shape::kBoxBytes);
#pragma unroll
        for (int box = 0; box < Shape::kBoxes; ++box) {
          load_box(stage + box * Shape::kBoxBytes, &map, stage_full, k + box * 64, 0, 0, group,
                   tile.expert);
        }
      }
      ring.advance();
    }
    __syncwarp();
  }
}

/// Gathers the input rows that belong to the weights of each stage; four warps.
template <typename Shape>
__device__ inline void gather_few_rows(const ProductArguments& task, std::uint32_t shared) {
  constexpr int kPass = 16 / Shape::kBoxes;  // rows that the threads copy at a time, 16 bytes each
  constexpr int kCount = (Shape::kRows + kPass - 1) / kPass;
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int chunk = thread % (8 * Shape::kBoxes);
  const int first_row = thread / (8 * Shape::kBoxes);
  const std::uint32_t offset = Shape::kInputOffset + chunk / 8 * (Shape::kRows * 128);
  typename Shape::Walk walk(task.offsets, task.num_experts, Shape::num_blocks(task.columns));
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x);
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, tile); unit += step) {
    const char* source[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = first_row + kPass * i;
      const int row = tile.row + r;
      source[i] = r < tile.num_rows ? task.x.row(Shape::kGather ? task.row_of[row] : row) : nullptr;
    }
    for (int k = 0; k < task.depth; k += Shape::kStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      const bool inside = k + chunk * 8 < task.depth;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool valid = inside && source[i] != nullptr;
        const int row = first_row + kPass * i;
        if (row < Shape::kRows) {
          copy_16(stage + offset + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                  valid ? source[i] + (k + chunk * 8) * 2 : task.x.data[0], valid);
        }
      }
      arrive_when_copied(full + 8 * ring.stage);
      ring.advance();
    }
  }
}

/// Waits for the other threads of this consumer.
__device__ inline void consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 128;" ::"r"(consumer + 1) : "memory");
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
__device__ inline void store_few(float (&d)[Shape::kRows / 2], const Tile& tile, int consumer,
                                 unsigned char* staging, const ProductArguments& task) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int warp_column = thread / 32 * (Shape::kColumns / 4) + lane / 4;
  const int first = tile.block * Shape::kTileColumns + consumer * Shape::kColumns;
  float bias[2] = {};
  if (!Shape::kGated && task.bias != nullptr) {
    for (int h = 0; h < 2; ++h) {
      const int column = first + warp_column + 8 * h;
      bias[h] = column < task.columns
                    ? __bfloat162float(task.bias[std::int64_t{tile.expert} * task.columns + column])
                    : 0.0F;
    }
  }
  consumer_sync(consumer);  // the last tile has left the staging rows
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
  consumer_sync(consumer);
  const int width = task.float_sums ? 4 : 8;  // elements of 16 bytes
  const int chunks = Shape::kColumns / width;
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
__device__ inline void consume_few(const ProductArguments& task, std::uint32_t shared, int consumer,
                                   unsigned char* staging) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  typename Shape::Walk walk(task.offsets, task.num_experts, Shape::num_blocks(task.columns));
  Ring<Shape::kStages> ring;
  Tile tile;
  const int step = static_cast<int>(gridDim.x);
  float d[Shape::kRows / 2];
  for (int unit = static_cast<int>(blockIdx.x); walk.find(unit, tile); unit += step) {
    int last_stage = -1;
    for (int k = 0; k < task.depth; k += Shape::kStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      fence_to_async();
      wgmma_fence();
#pragma unroll
      for (int box = 0; box < Shape::kBoxes; ++box) {
        const std::uint64_t a =
            tile_descriptor(stage + box * Shape::kBoxBytes + consumer * kFewRows * 128);
        const std::uint64_t b =
            tile_descriptor(stage + Shape::kInputOffset + box * Shape::kRows * 128);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          multiply(d, a + 2 * i, b + 2 * i, k > 0 || box > 0 || i > 0);
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
    store_few<Shape>(d, tile, consumer, staging, task);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    few_kernel(const __grid_constant__ CUtensorMap map, const ProductArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(full + 8 * s, 129);
      barrier_init(full + 8 * (Shape::kStages + s), 4 * Shape::kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  constexpr int kLoader = 128 + 128 * Shape::kConsumers;  // first thread of the warp for weights
  const int thread = static_cast<int>(threadIdx.x);
  if (Shape::kGather || !task.early || thread < 128) {
    begin_after_previous();
  }
  if (thread < 128) {
    gather_few_rows<Shape>(task, shared);
  } else if (thread < kLoader) {
    const int consumer = (thread - 128) / 128;
    consume_few<Shape>(task, shared, consumer,
                       memory + Shape::kStagingOffset + consumer * Shape::kRows * Shape::kPitch);
  } else {
    load_few_weights<Shape>(map, task, shared);
  }
}

}  // namespace coterie::kernels::cuda
