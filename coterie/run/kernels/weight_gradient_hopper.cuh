// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "coterie/run/kernels/backward_hopper.cuh"
#include "coterie/run/kernels/row_source.cuh"

/// Private to the room: gradients of weights on Hopper: dW_e = sum over the rows of expert e of
/// a[row]^T b[row]. The rows are K, and lie outside in both operands.
///
/// A tile is 128 columns of `a`, gathered row by row (16-byte copies), times 256 columns of `b`,
/// whose rows lie in order: the copy engine brings them, half for each block of a cluster of two,
/// which share them. The last rows of an expert are followed by zeros in both operands, written by
/// the producers, since what follows in memory belongs to another expert or to nobody.
namespace coterie::kernels::cuda {

struct WeightGradientArguments {
  RowSource a;
  const std::int32_t* row_of;  // rows of a; null: row r
  int a_columns;
  const char* b;
  std::int64_t b_stride_bytes;
  int b_columns;
  const std::int32_t* offsets;
  int num_experts;
  void* out;  // [E, a_columns, b_columns], transposed [E, b_columns, a_columns]
  bool accumulate;
  Watchdog watchdog;
};

/// How results leave.
enum class Leave { kRounded, kAddRounded, kFloat };

template <bool kTransposed_, Leave kLeave_>
struct WeightGradientShape {
  static constexpr bool kTransposed = kTransposed_;
  static constexpr Leave kLeave = kLeave_;
  static constexpr int kStages = 4;
  static constexpr int kAColumns = 128;
  static constexpr int kBColumns = 256;
  static constexpr int kStageBytes = 6 * kGroupBytes;
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + 8 * 16 * (256 + 16);
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than a block can have");
};

/// One tile of one expert's gradient.
struct GradientTile {
  int expert;
  int first_row;
  int num_rows;
  int a_column;  // may lie past the last column: then computed to keep step, not stored
  int b_column;
};

/// Tiles expert by expert; within one, the pairs of column blocks of `a` that a cluster takes run
/// fastest.
class GradientWalk {
 public:
  __device__ explicit GradientWalk(const WeightGradientArguments& task)
      : offsets_(task.offsets),
        num_experts_(task.num_experts),
        pairs_((task.a_columns + 255) / 256),
        units_(pairs_ * ((task.b_columns + 255) / 256)) {}

  /// Tile of unit `unit` for block `rank` of the cluster; false past the end.
  __device__ bool find(int unit, int rank, GradientTile& tile) const {
    tile.expert = unit / units_;
    if (tile.expert >= num_experts_) {
      return false;
    }
    const int local = unit - tile.expert * units_;
    const int b_block = local / pairs_;
    tile.a_column = ((local - b_block * pairs_) * 2 + rank) * 128;
    tile.b_column = b_block * 256;
    tile.first_row = __ldcg(offsets_ + tile.expert);
    tile.num_rows = __ldcg(offsets_ + tile.expert + 1) - tile.first_row;
    return true;
  }

 private:
  const std::int32_t* offsets_;
  int num_experts_;
  int pairs_;
  int units_;  // of an expert
};

/// The rest of an expert's rows, fewer than a stage: rows of b by 16-byte copies, then zeros.
__device__ inline void copy_last_rows(const WeightGradientArguments& task, const GradientTile& tile,
                                      int done, std::uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % 32;
  const int column = tile.b_column + piece * 8;
#pragma unroll 4
  for (int row = thread / 32; row < kDepthStep; row += 4) {
    const bool valid = done + row < tile.num_rows && column < task.b_columns;
    const char* const from = task.b +
                             (std::int64_t{tile.first_row} + done + row) * task.b_stride_bytes +
                             std::int64_t{column} * 2;
    copy_16(to + piece / 8 * kGroupBytes + swizzled(row, piece % 8), valid ? from : task.b, valid);
  }
}

/// Loads 64 rows of b: half of the columns, to both blocks of the cluster; one thread.
__device__ inline void load_shared_rows(const CUtensorMap& map, const GradientTile& tile, int done,
                                        std::uint32_t to, std::uint32_t full, int rank) {
  for (int g = 2 * rank; g < 2 * rank + 2; ++g) {
    load_box_to_all(to + g * kGroupBytes, &map, full, 3, tile.b_column + 64 * g,
                    tile.first_row + done, 0, 0);
  }
}

template <typename Shape>
__device__ inline void produce_gradient(const CUtensorMap& b_map,
                                        const WeightGradientArguments& task, std::uint32_t shared,
                                        int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int piece = thread % 16;  // this thread copies it in rows thread / 16 + 8 i
  const std::uint32_t offset = piece / 8 * kGroupBytes + swizzled(thread / 16, piece % 8);
  // The warp needs rows 2 warp + {0, 1} + 8 i: lane l looks up row 2 warp + l % 2 + 8 (l / 2).
  const int my_row = thread / 32 * 2 + lane % 2 + lane / 2 % 8 * 8;
  const GradientWalk walk(task);
  Ring<Shape::kStages> ring;
  GradientTile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    const auto look_up = [&](int done) -> std::int64_t {
      const std::int64_t r = std::int64_t{tile.first_row} + done + my_row;
      return done + my_row >= tile.num_rows ? -1 : task.row_of != nullptr ? task.row_of[r] : r;
    };
    const int column = tile.a_column + piece * 8;
    const bool inside = column < task.a_columns;
    std::int64_t next = look_up(0);
    for (int done = 0; done < tile.num_rows; done += kDepthStep) {
      const std::uint64_t mine =
          next < 0 ? 0 : reinterpret_cast<std::uint64_t>(task.a.row(next)) + tile.a_column * 2;
      next = look_up(done + kDepthStep);
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      const bool last = done + kDepthStep > tile.num_rows;
      if (thread == 0 && last) {
        barrier_arrive(stage_full);
      } else if (thread == 0) {
        barrier_expect(stage_full, 4 * kGroupBytes);
        load_shared_rows(b_map, tile, done, stage + 2 * kGroupBytes, stage_full, rank);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint64_t from = __shfl_sync(~0U, mine, lane / 16 + 2 * i);
        const bool valid = inside && from != 0;
        gather_16(stage + offset + i * 1024,
                  valid ? reinterpret_cast<const char*>(from) + piece * 16 : task.b, valid);
      }
      if (last) {
        copy_last_rows(task, tile, done, stage + 2 * kGroupBytes);
      }
      arrive_when_copied(stage_full);
      ring.advance();
    }
  }
}

/// Rounded results, transposed: 64 columns of a by 256 of b leave as rows of 64, through 16 KiB of
/// staging that the warpgroup shares.
__device__ inline void store_transposed(const float (&d)[128], const GradientTile& tile, int group,
                                        std::uint32_t staging,
                                        const WeightGradientArguments& task) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int piece = thread / 32 * 2 + lane / 8 % 2;  // of this lane's matrix row
  const int matrix_row = lane / 16 * 8 + lane % 8;
  __nv_bfloat16* const out = static_cast<__nv_bfloat16*>(task.out) +
                             std::int64_t{tile.expert} * task.a_columns * task.b_columns;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    warpgroup_sync(group);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = pass * 64 + 8 * j;
      store_matrices_transposed(staging + swizzled(16 * j + matrix_row, piece),
                                pack(d[i], d[i + 1]), pack(d[i + 2], d[i + 3]),
                                pack(d[i + 4], d[i + 5]), pack(d[i + 6], d[i + 7]));
    }
    warpgroup_sync(group);
    const int column = tile.a_column + group * 64 + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = thread / 8 + 16 * i;
      const int row = tile.b_column + pass * 128 + r;
      if (row < task.b_columns && column < task.a_columns) {
        store_global_16(out + std::int64_t{row} * task.a_columns + column,
                        load_shared_16(staging + swizzled(r, thread % 8)));
      }
    }
  }
}

/// Writes one result, or adds it to what is there.
__device__ inline void put(float* to, float value, bool accumulate) {
  *to = accumulate ? *to + value : value;
}
__device__ inline void put(__nv_bfloat16* to, float value, bool accumulate) {
  *to = __float2bfloat16_rn(accumulate ? __bfloat162float(*to) + value : value);
}

/// Results straight from registers: fp32, or added to what is there.
template <typename Out, bool kTransposed>
__device__ inline void store_directly(const float (&d)[128], const GradientTile& tile, int warp,
                                      const WeightGradientArguments& task) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Out* const out =
      static_cast<Out*>(task.out) + std::int64_t{tile.expert} * task.a_columns * task.b_columns;
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    const int a = tile.a_column + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    const int b = tile.b_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (a < task.a_columns && b < task.b_columns) {
      put(out + (kTransposed ? std::int64_t{b} * task.a_columns + a
                             : std::int64_t{a} * task.b_columns + b),
          d[i], task.accumulate);
    }
  }
}

template <typename Shape>
__device__ inline void store_gradient(const float (&d)[128], const GradientTile& tile, int warp,
                                      std::uint32_t staging, const WeightGradientArguments& task) {
  if constexpr (Shape::kLeave == Leave::kFloat) {
    store_directly<float, Shape::kTransposed>(d, tile, warp, task);
  } else if constexpr (Shape::kLeave == Leave::kAddRounded) {
    store_directly<__nv_bfloat16, Shape::kTransposed>(d, tile, warp, task);
  } else if constexpr (Shape::kTransposed) {
    store_transposed(d, tile, warp / 4, staging + warp / 4 * 16384, task);
  } else {
    const int row = tile.a_column + warp * 16;
    char* const to =
        static_cast<char*>(task.out) +
        ((std::int64_t{tile.expert} * task.a_columns + row) * task.b_columns + tile.b_column) * 2;
    store_row_block(d, staging + warp * 16 * (256 + 16), {to, std::int64_t{task.b_columns} * 2},
                    task.a_columns - row, task.b_columns - tile.b_column);
  }
}

template <typename Shape>
__device__ inline void consume_gradient(const WeightGradientArguments& task, std::uint32_t shared,
                                        int rank) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int group = warp / 4;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const GradientWalk walk(task);
  Ring<Shape::kStages> ring;
  const int step = static_cast<int>(gridDim.x) / 2;
  int unit = static_cast<int>(blockIdx.x) / 2;
  GradientTile next;
  bool more = walk.find(unit, rank, next);
  float d[128];
  while (more) {
    const GradientTile tile = next;
    unit += step;
    more = walk.find(unit, rank, next);                  // early: it reads global memory
    if (tile.a_column + group * 64 >= task.a_columns) {  // nothing here is ours
      for (int done = 0; done < tile.num_rows; done += kDepthStep) {
        barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
        release_stage(empty + 8 * ring.stage);
        ring.advance();
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < 128; ++i) {
      d[i] = 0.0F;
    }
    int last_stage = -1;
    int done = 0;
    for (; done + kDepthStep <= tile.num_rows; done += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      fence_to_async();
      wgmma_fence();
      const std::uint64_t a = columns_descriptor(stage + group * kGroupBytes, kGroupBytes);
      const std::uint64_t b = columns_descriptor(stage + 2 * kGroupBytes, kGroupBytes);
#pragma unroll
      for (int i = 0; i < kDepthStep / 16; ++i) {
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
    if (done < tile.num_rows) {  // the last rows, 16 at a time
      if (last_stage >= 0) {
        release_stage(empty + 8 * last_stage);
      }
      last_stage = ring.stage;
      const std::uint32_t stage = shared + ring.stage * Shape::kStageBytes;
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      fence_to_async();
      const std::uint64_t a = columns_descriptor(stage + group * kGroupBytes, kGroupBytes);
      const std::uint64_t b = columns_descriptor(stage + 2 * kGroupBytes, kGroupBytes);
#pragma unroll 1
      for (int i = 0; done + 16 * i < tile.num_rows; ++i) {
        wgmma_fence();
        multiply<1, 1>(d, a + 128 * i, b + 128 * i, 1);
        wgmma_commit();
        wgmma_wait<0>();
      }
      ring.advance();
    }
    if (last_stage >= 0) {
      release_stage(empty + 8 * last_stage);
    } else if (task.accumulate) {
      continue;
    }
    store_gradient<Shape>(d, tile, warp, shared + Shape::kStagingOffset, task);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kProductThreads, 1)
    weight_gradient_kernel(const __grid_constant__ CUtensorMap b_map,
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
  if (threadIdx.x < 128) {
    lower_registers<56>();
    produce_gradient<Shape>(b_map, task, shared, rank);
    __syncwarp();
  } else {
    raise_registers<224>();
    consume_gradient<Shape>(task, shared, rank);
  }
  cluster_sync();  // the other block may still signal to this one's barriers
}

}  // namespace coterie::kernels::cuda
