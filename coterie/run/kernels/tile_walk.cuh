// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Private to the room: which tile of a grouped product a block computes next.
namespace coterie::kernels::cuda {

constexpr int kTileRows = 128;

/// Up to 128 rows of one expert times one block of columns.
struct Tile {
  int expert = 0;
  int row = 0;          ///< first row, in the numbering of the segments
  int num_rows = 0;     ///< rows that the expert really has here, 1 to 128
  int block = 0;        ///< block of columns
  bool shared = false;  ///< both blocks of the cluster use the same weights
  bool idle = false;    ///< computed to keep step with the other block; not stored
};

/// Numbers the tiles of all experts without any list in memory: expert after expert, within an
/// expert column block after column block, so that neighbours share weights in the L2 cache. A
/// cluster of two takes two row tiles of the same column block (shared weights), or, where the
/// last row tile has no partner, two column blocks of that row tile.
template <int kCluster>
class TileWalk {
 public:
  __device__ TileWalk(const std::int32_t* offsets, int num_experts, int num_blocks)
      : offsets_(offsets), num_experts_(num_experts), num_blocks_(num_blocks) {
    begin_ = offsets_[0];
    load();
  }

  /// Tile of unit `unit` for block `rank` of the cluster; false past the end. Units must not fall.
  __device__ bool find(int unit, int rank, Tile& tile) {
    while (unit >= first_ + num_units_) {
      first_ += num_units_;
      begin_ = end_;
      if (++expert_ >= num_experts_) {
        return false;
      }
      load();
    }
    const int local = unit - first_;
    const int pairs = num_tiles_ / kCluster;
    tile.expert = expert_;
    tile.shared = kCluster > 1 && local < pairs * num_blocks_;
    int row_tile = num_tiles_ - 1;
    if (kCluster == 1 || tile.shared) {
      tile.block = local / pairs;
      row_tile = (local - tile.block * pairs) * kCluster + rank;
    } else {
      tile.block = (local - pairs * num_blocks_) * kCluster + rank;
    }
    tile.idle = tile.block >= num_blocks_;
    tile.block = tile.idle ? num_blocks_ - 1 : tile.block;
    tile.row = begin_ + row_tile * kTileRows;
    tile.num_rows = min(kTileRows, end_ - tile.row);
    return true;
  }

 private:
  __device__ void load() {
    end_ = offsets_[expert_ + 1];
    num_tiles_ = (end_ - begin_ + kTileRows - 1) / kTileRows;
    const int pairs = num_tiles_ / kCluster;
    const int rest = num_tiles_ - pairs * kCluster;
    num_units_ = pairs * num_blocks_ + rest * ((num_blocks_ + kCluster - 1) / kCluster);
  }

  const std::int32_t* offsets_;
  int num_experts_;
  int num_blocks_;
  int expert_ = 0;
  int first_ = 0;  // number of the expert's first unit
  int begin_ = 0;
  int end_ = 0;
  int num_tiles_ = 0;
  int num_units_ = 0;
};

}  // namespace coterie::kernels::cuda
