// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/tile_walk.cuh"

/// Private to the room: which tile of a grouped product with few rows an expert a block computes.
namespace coterie::kernels::cuda {

/// Numbers tiles as TileWalk does, but reads 128 experts at a time, four a lane: where few experts
/// have rows, a block would wait for one group of 32 after the other before it knew its first tile.
///
/// Whole warps call it together.
template <int kRows>
class FewWalk {
 public:
  __device__ FewWalk(const std::int32_t* offsets, int num_experts, int num_blocks)
      : offsets_(offsets), num_experts_(num_experts), num_blocks_(num_blocks) {
    load();
  }

  /// The tile of unit `unit`; false past the end. Units must not fall.
  __device__ bool find(int unit, Tile& tile) {
    while (unit >= group_end_) {
      group_ += 4 * 32;
      if (group_ >= num_experts_) {
        return false;
      }
      load();
    }
    const int lane = __popc(__ballot_sync(~0U, first_[0] <= unit)) - 1;  // the last so low
    int mine = 0;
    int begin = limit_[0];
    int end = limit_[1];
    int first = first_[0];
#pragma unroll
    for (int j = 1; j < 4; ++j) {
      if (unit >= first_[j]) {
        mine = j;
        begin = limit_[j];
        end = limit_[j + 1];
        first = first_[j];
      }
    }
    tile.expert = group_ + 4 * lane + __shfl_sync(~0U, mine, lane);
    begin = __shfl_sync(~0U, begin, lane);
    end = __shfl_sync(~0U, end, lane);
    const int local = unit - __shfl_sync(~0U, first, lane);
    const int num_tiles = (end - begin + kRows - 1) / kRows;
    tile.block = local / num_tiles;
    tile.row = begin + (local - tile.block * num_tiles) * kRows;
    tile.num_rows = min(kRows, end - tile.row);
    return true;
  }

 private:
  /// Reads the segments of experts [group_, group_ + 128) and numbers their tiles.
  __device__ void load() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j <= 4; ++j) {
      limit_[j] = __ldcg(offsets_ + min(group_ + 4 * lane + j, num_experts_));
    }
    int units = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first_[j] = units;
      units += (limit_[j + 1] - limit_[j] + kRows - 1) / kRows * num_blocks_;
    }
    int sum = units;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0U, sum, d);
      sum += lane >= d ? other : 0;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first_[j] += group_end_ + sum - units;
    }
    group_end_ += __shfl_sync(~0U, sum, 31);
  }

  const std::int32_t* offsets_;
  int num_experts_;
  int num_blocks_;
  int group_ = 0;      // first of the 128 experts at hand
  int group_end_ = 0;  // units up to their end
  int first_[4];       // numbers of the first units of this lane's experts
  int limit_[5];       // their segments
};

}  // namespace coterie::kernels::cuda
