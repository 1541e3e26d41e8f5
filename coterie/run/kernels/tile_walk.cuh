// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Private to the room: which tile of a grouped product a block computes next.
namespace coterie::kernels::cuda {

constexpr int kTileRows = 128;

/// Some rows of one expert times one block of columns.
struct Tile {
  int expert = 0;
  int row = 0;          ///< first row, in the numbering of the segments
  int num_rows = 0;     ///< rows that the expert really has here, from 1 to the tile's height
  int block = 0;        ///< block of columns
  bool shared = false;  ///< both blocks of the cluster use the same weights
  bool idle = false;    ///< computed to keep step with the other block; not stored
};

/// Numbers the tiles of all experts without any list in memory: expert after expert, within an
/// expert 2,048 rows after 2,048 rows, within these column block after column block: so that what
/// runs at one time needs few rows and few weights, and finds both in the L2 cache. A cluster of
/// two takes two row tiles of the same column block (shared weights), or, where the last row tile
/// has no partner, two column blocks of that row tile.
///
/// Whole warps call it together: each lane knows one of 32 experts.
template <int kCluster, int kRows = kTileRows>
class TileWalk {
 public:
  __device__ TileWalk(const std::int32_t* offsets, int num_experts, int num_blocks)
      : offsets_(offsets), num_experts_(num_experts), num_blocks_(num_blocks) {
    load();
  }

  /// Tile of unit `unit` for block `rank` of the cluster; false past the end. Units must not fall.
  __device__ bool find(int unit, int rank, Tile& tile) {
    while (unit >= group_end_) {
      group_ += 32;
      if (group_ >= num_experts_) {
        return false;
      }
      load();
    }
    const int lane = __popc(__ballot_sync(~0U, first_ <= unit)) - 1;  // the last that begins so low
    const int begin = __shfl_sync(~0U, begin_, lane);
    const int end = __shfl_sync(~0U, end_, lane);
    const int local = unit - __shfl_sync(~0U, first_, lane);
    const int num_tiles = (end - begin + kRows - 1) / kRows;
    const int pairs = num_tiles / kCluster;
    tile.expert = group_ + lane;
    tile.shared = kCluster > 1 && local < pairs * num_blocks_;
    int row_tile = num_tiles - 1;
    if (kCluster == 1 || tile.shared) {
      const int first_pair = local / (kGroup * num_blocks_) * kGroup;
      const int in_group = local - first_pair * num_blocks_;
      const int num_pairs = min(kGroup, pairs - first_pair);
      tile.block = in_group / num_pairs;
      row_tile = (first_pair + in_group - tile.block * num_pairs) * kCluster + rank;
    } else {
      tile.block = (local - pairs * num_blocks_) * kCluster + rank;
    }
    tile.idle = tile.block >= num_blocks_;
    tile.block = tile.idle ? num_blocks_ - 1 : tile.block;
    tile.row = begin + row_tile * kRows;
    tile.num_rows = min(kRows, end - tile.row);
    return true;
  }

 private:
  static constexpr int kGroup = 2048 / (kCluster * kRows);  // pairs (cluster of two) at a time

  /// Reads the segments of experts [group_, group_ + 32) and numbers their units.
  __device__ void load() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int expert = group_ + lane;
    begin_ = __ldcg(offsets_ + min(expert, num_experts_));  // not from a cache of an earlier kernel
    end_ = __ldcg(offsets_ + min(expert + 1, num_experts_));
    const int num_tiles = (end_ - begin_ + kRows - 1) / kRows;
    const int pairs = num_tiles / kCluster;
    const int rest = num_tiles - pairs * kCluster;
    const int units = pairs * num_blocks_ + rest * ((num_blocks_ + kCluster - 1) / kCluster);
    int sum = units;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0U, sum, d);
      sum += lane >= d ? other : 0;
    }
    first_ = group_end_ + sum - units;
    group_end_ += __shfl_sync(~0U, sum, 31);
  }

  const std::int32_t* offsets_;
  int num_experts_;
  int num_blocks_;
  int group_ = 0;      // first of the 32 experts at hand
  int group_end_ = 0;  // units up to their end
  int first_ = 0;      // number of this lane's expert's first unit
  int begin_ = 0;
  int end_ = 0;
};

}  // namespace coterie::kernels::cuda
