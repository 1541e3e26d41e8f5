// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/gradient_store.cuh"

/// Private to the room: gradients of weights on Hopper: dW_e = sum over the rows of expert e of
/// a[row]^T b[row]. The rows are K, and lie outside in both operands.
///
/// A tile is 128 columns of `a`, gathered row by row (16-byte copies), times 256 columns of `b`,
/// whose rows lie in order: the copy engine brings them, half for each block of a cluster of two,
/// which share them; where 128 columns of b are left, the tile has those alone. The last rows of an
/// expert are followed by zeros in both operands, written by the producers, since what follows in
/// memory belongs to another expert or to nobody.
namespace coterie::kernels::cuda {

template <bool kTransposed_, Leave kLeave_>
struct WeightGradientShape {
  static constexpr bool kTransposed = kTransposed_;
  static constexpr Leave kLeave = kLeave_;
  static constexpr int kDepth = 64;  // rows a stage
  static constexpr int kStages = 4;
  static constexpr int kColumnsBytes = 64 * kDepth * 2;  // 64 columns of a stage
  static constexpr int kStageBytes = 6 * kColumnsBytes;  // 128 of a, then 256 of b
  static constexpr int kBOffset = 2 * kColumnsBytes;
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kOrderOffset = kStagingOffset + 2 * kPatchesBytes;
  static constexpr int kBarrierOffset = kOrderOffset + kMaxExperts * 2;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than a block can have");
};

/// The rest of an expert's rows, fewer than a stage: rows of b by 16-byte copies, then zeros.
template <typename Shape>
__device__ inline void copy_last_rows(const WeightGradientArguments& task, const GradientTile& tile,
                                      int done, std::uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % 32;
  const int column = tile.b_column + piece * 8;
#pragma unroll 4
  for (int row = thread / 32; row < Shape::kDepth; row += 4) {
    const bool valid = done + row < tile.num_rows && column < task.b_columns;
    const char* const from = task.b +
                             (std::int64_t{tile.first_row} + done + row) * task.b_stride_bytes +
                             std::int64_t{column} * 2;
    copy_16(to + piece / 8 * Shape::kColumnsBytes + swizzled(row, piece % 8), valid ? from : task.b,
            valid);
  }
}

/// Loads the rows of b of one stage: half of the columns, to both blocks of the cluster; one
/// thread.
template <typename Shape>
__device__ inline void load_shared_rows(const CUtensorMap& map, const GradientTile& tile, int done,
                                        std::uint32_t to, std::uint32_t full, int rank) {
  const int count = tile.narrow ? 1 : 2;  // groups of 64 columns
  barrier_expect(full, 2 * count * Shape::kColumnsBytes);
  for (int g = count * rank; g < count * (rank + 1); ++g) {
    load_box_to_all(to + g * Shape::kColumnsBytes, &map, full, 3, tile.b_column + 64 * g,
                    tile.first_row + done, 0, 0);
  }
}

template <typename Shape>
__device__ inline void produce_gradient(const CUtensorMap& b_map,
                                        const WeightGradientArguments& task,
                                        const GradientWalk& walk, std::uint32_t shared, int rank) {
  constexpr int kCopies = Shape::kDepth / 8;  // a thread and stage
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int piece = thread % 16;  // this thread copies it in rows thread / 16 + 8 i
  const std::uint32_t offset = piece / 8 * Shape::kColumnsBytes + swizzled(thread / 16, piece % 8);
  // The warp needs rows 2 warp + {0, 1} + 8 i: lane l looks up row 2 warp + l % 2 + 8 (l / 2).
  const int my_row = thread / 32 * 2 + lane % 2 + lane / 2 % kCopies * 8;
  Ring<Shape::kStages> ring;
  GradientTile tile;
  for (int round = 0; walk.find(round, rank, tile); ++round) {
    const auto look_up = [&](int done) -> std::int64_t {
      const std::int64_t r = std::int64_t{tile.first_row} + done + my_row;
      return done + my_row >= tile.num_rows ? -1 : task.row_of != nullptr ? task.row_of[r] : r;
    };
    const bool inside = tile.a_column + piece * 8 < task.a_columns;
    std::int64_t next = look_up(0);
    for (int done = 0; done < tile.num_rows; done += Shape::kDepth) {
      const std::uint64_t mine =
          next < 0 ? 0 : reinterpret_cast<std::uint64_t>(task.a.row(next)) + tile.a_column * 2;
      next = look_up(done + Shape::kDepth);
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      const bool last = done + Shape::kDepth > tile.num_rows;
      if (thread == 0 && last) {
        barrier_arrive(stage_full);
      } else if (thread == 0) {
        load_shared_rows<Shape>(b_map, tile, done, stage + Shape::kBOffset, stage_full, rank);
      }
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const std::uint64_t from = __shfl_sync(~0U, mine, lane / 16 + 2 * i);
        const bool valid = inside && from != 0;
        gather_16(stage + offset + i * 1024,
                  valid ? reinterpret_cast<const char*>(from) + piece * 16 : task.b, valid);
      }
      if (last) {
        copy_last_rows<Shape>(task, tile, done, stage + Shape::kBOffset);
      }
      arrive_when_copied(stage_full);
      ring.advance();
    }
  }
}

/// Multiplies 64 columns of a with 2 * kSums columns of b over all rows of a tile.
template <typename Shape, int kSums>
__device__ inline void multiply_columns(float (&d)[kSums], int num_rows, int group,
                                        std::uint32_t shared, const Watchdog& watchdog,
                                        Ring<Shape::kStages>& ring) {
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const auto a_of = [&] {
    return columns_descriptor(
        shared + ring.stage * Shape::kStageBytes + group * Shape::kColumnsBytes,
        Shape::kColumnsBytes);
  };
  const auto b_of = [&] {
    return columns_descriptor(shared + ring.stage * Shape::kStageBytes + Shape::kBOffset,
                              Shape::kColumnsBytes);
  };
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    d[i] = 0.0F;
  }
  int last_stage = -1;
  int done = 0;
  for (; done + Shape::kDepth <= num_rows; done += Shape::kDepth) {
    barrier_wait(full + 8 * ring.stage, ring.phase, watchdog);
    fence_to_async();
    wgmma_fence();
    const std::uint64_t a = a_of();
    const std::uint64_t b = b_of();
#pragma unroll
    for (int i = 0; i < Shape::kDepth / 16; ++i) {
      multiply<1, 1>(d, a + 128 * i, b + 128 * i, 1);
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
  if (last_stage >= 0) {
    release_stage(empty + 8 * last_stage);
  }
  if (done == num_rows) {
    return;
  }
  barrier_wait(full + 8 * ring.stage, ring.phase, watchdog);  // the last rows, 16 at a time
  fence_to_async();
  const std::uint64_t a = a_of();
  const std::uint64_t b = b_of();
#pragma unroll 1
  for (int i = 0; done + 16 * i < num_rows; ++i) {
    wgmma_fence();
    multiply<1, 1>(d, a + 128 * i, b + 128 * i, 1);
    wgmma_commit();
    wgmma_wait<0>();
  }
  release_stage(empty + 8 * ring.stage);
  ring.advance();
}

template <typename Shape>
__device__ inline void consume_gradient(const CUtensorMap& out_map,
                                        const WeightGradientArguments& task,
                                        const GradientWalk& walk, std::uint32_t shared, int rank) {
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const GradientExit exit{group, shared + Shape::kStagingOffset + group * kPatchesBytes};
  Ring<Shape::kStages> ring;
  GradientTile next;
  bool more = walk.find(0, rank, next);
  for (int round = 1; more; ++round) {
    const GradientTile tile = next;
    more = walk.find(round, rank, next);                 // early: it reads global memory
    if (tile.a_column + group * 64 >= task.a_columns) {  // nothing here is ours
      const std::uint32_t full = shared + Shape::kBarrierOffset;
      for (int done = 0; done < tile.num_rows; done += Shape::kDepth) {
        barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
        release_stage(full + 8 * (Shape::kStages + ring.stage));
        ring.advance();
      }
      continue;
    }
    const auto compute = [&](auto& d) {
      multiply_columns<Shape>(d, tile.num_rows, group, shared, task.watchdog, ring);
      if (tile.num_rows > 0 || !task.accumulate) {
        store_gradient<Shape::kTransposed, Shape::kLeave>(d, tile, exit, out_map, task);
      }
    };
    if (tile.narrow) {
      float d[64];
      compute(d);
    } else {
      float d[128];
      compute(d);
    }
  }
  if (threadIdx.x % 128 == 0) {
    wait_for_stores();
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kProductThreads, 1)
    weight_gradient_kernel(const __grid_constant__ CUtensorMap b_map,
                           const __grid_constant__ CUtensorMap out_map,
                           const __grid_constant__ WeightGradientArguments task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&b_map);
    init_ring<Shape::kStages>(shared + Shape::kBarrierOffset, 129);
  }
  cluster_sync();
  begin_after_previous();
  auto* const order = reinterpret_cast<std::uint16_t*>(memory + Shape::kOrderOffset);
  sort_experts(task, reinterpret_cast<int*>(memory + Shape::kStagingOffset), order);
  const GradientWalk walk(task, order);
  if (threadIdx.x < 128) {
    lower_registers<56>();
    produce_gradient<Shape>(b_map, task, walk, shared, rank);
    __syncwarp();
  } else {
    raise_registers<224>();
    consume_gradient<Shape>(out_map, task, walk, shared, rank);
  }
  cluster_sync();  // the other block may still signal to this one's barriers
}

}  // namespace coterie::kernels::cuda
