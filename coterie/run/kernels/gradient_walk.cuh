// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/mbarrier.cuh"
#include "coterie/run/kernels/row_source.cuh"

/// Private to the room: which tile of a grouped weight gradient a cluster computes next.
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

/// One tile of one expert's gradient: 128 columns of a by 256 of b.
struct GradientTile {
  int expert;
  int first_row;
  int num_rows;
  int a_column;  // may lie past the last column: then computed to keep step, not stored
  int b_column;
  bool narrow;  // 128 columns of b are enough
};

/// Experts by falling number of rows, the lower id first: 16 bits each, to shared memory. All
/// threads of the block together; `lengths` is scratch, 4 bytes an expert.
__device__ inline void sort_experts(const WeightGradientArguments& task, int* lengths,
                                    std::uint16_t* order) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < task.num_experts; e += num_threads) {
    lengths[e] = __ldcg(task.offsets + e + 1) - __ldcg(task.offsets + e);
  }
  __syncthreads();
  for (int e = thread; e < task.num_experts; e += num_threads) {
    const int mine = lengths[e];
    int place = 0;
#pragma unroll 4
    for (int other = 0; other < task.num_experts; ++other) {
      const int length = lengths[other];
      place += length > mine || (length == mine && other < e) ? 1 : 0;
    }
    order[place] = static_cast<std::uint16_t>(e);
  }
  __syncthreads();
}

/// Tiles of the longest expert first; within an expert, the pairs of column blocks of `a` that a
/// cluster takes run fastest. Clusters take them in turn, every second round in reverse, so that
/// none gets the longer tile of every round. What a tile holds depends on nothing of this.
class GradientWalk {
 public:
  __device__ GradientWalk(const WeightGradientArguments& task, const std::uint16_t* order)
      : offsets_(task.offsets),
        order_(order),
        num_experts_(task.num_experts),
        b_columns_(task.b_columns),
        pairs_((task.a_columns + 255) / 256),
        units_(pairs_ * ((task.b_columns + 255) / 256)) {}

  /// Tile of round `round` for block `rank` of this cluster; false past the end.
  __device__ bool find(int round, int rank, GradientTile& tile) const {
    const int num_clusters = static_cast<int>(gridDim.x) / 2;
    const int cluster = static_cast<int>(blockIdx.x) / 2;
    const int unit = round * num_clusters + (round % 2 == 0 ? cluster : num_clusters - 1 - cluster);
    const int place = unit / units_;
    if (place >= num_experts_) {
      return false;
    }
    tile.expert = order_[place];
    const int local = unit - place * units_;
    const int b_block = local / pairs_;
    tile.a_column = ((local - b_block * pairs_) * 2 + rank) * 128;
    tile.b_column = b_block * 256;
    tile.narrow = tile.b_column + 128 >= b_columns_;
    tile.first_row = __ldcg(offsets_ + tile.expert);
    tile.num_rows = __ldcg(offsets_ + tile.expert + 1) - tile.first_row;
    return true;
  }

 private:
  const std::int32_t* offsets_;
  const std::uint16_t* order_;
  int num_experts_;
  int b_columns_;
  int pairs_;
  int units_;  // of an expert
};

}  // namespace coterie::kernels::cuda
