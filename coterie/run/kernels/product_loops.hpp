// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: the loops of a product, written once for all instruction sets. See
// vector_types.hpp.
//
// The order of summation is the same wherever an output is computed. K is cut into blocks of
// kBlockSteps steps; in a block, lane l of an accumulator sums the products of k = l, l + L, l + 2L
// ... upwards (L lanes; for bf16 pairs see Bf16Math); then the lanes are added in the tree of
// Isa::reduce_four, and the block's sum is added to the sum of the blocks before it. Tiles and
// panels only decide when.
//
//   rows in chunks of kChunkRows, packed once as panel A: [tile][step][row of tile][step elements]
//   outputs in two segments of kSegment columns (gate | up, or the first and second half)
//   few rows:  weights straight from memory, one group of columns after the other
//   many rows: one block of weights packed as panel B, used by all rows while it is in the cache

#include "coterie/run/kernels/activation_loops.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/product_tiles.hpp"
#include "coterie/run/kernels/weight_fetch.hpp"

namespace coterie::kernels {

/// The nest of loops around the tiles, for one combination of arithmetic and weight type.
template <class Math, class W>
class ProductLoops {
  using Isa = typename Math::Isa;
  using Element = typename Math::Element;
  static constexpr i64 kStep = Math::kStep;
  static constexpr i64 kLanes = Isa::kLanes;
  static constexpr i64 kR = Isa::kTileRows;
  static constexpr i64 kC = Isa::kTileColumns;
  static constexpr i64 kSegment = Isa::kSegment;  // a multiple of kLanes and of 8
  static constexpr i64 kColumns = 2 * kSegment;
  static constexpr i64 kChunkRows = Isa::kChunkRows;
  static constexpr i64 kBlockSteps = Isa::kBlockSteps;
  // Row tiles that share the first-level cache.
  static constexpr i64 kGroupTiles = Isa::kGroupTiles;
  // Column tiles whose block of weights shares the second-level cache.
  static constexpr i64 kPanelTiles = Isa::kPanelTiles;

 public:
  static i64 scratch_bytes(i64 depth) { return a_bytes(depth) + kB + kSumBytes; }

  explicit ProductLoops(const ProductBlock& block)
      : block_(block),
        steps_((block.depth + kStep - 1) / kStep),
        a_(reinterpret_cast<Element*>(block.scratch)),
        b_(reinterpret_cast<Element*>(block.scratch + a_bytes(block.depth))),
        sums_(reinterpret_cast<float*>(block.scratch + a_bytes(block.depth) + kB)) {}

  void run() {
    const i64 num_chunks = (block_.num_rows + kChunkRows - 1) / kChunkRows;
    for (i64 chunk = 0; chunk < num_chunks; ++chunk) {
      first_row_ = chunk * block_.num_rows / num_chunks;
      num_rows_ = (chunk + 1) * block_.num_rows / num_chunks - first_row_;
      num_tiles_ = (num_rows_ + kR - 1) / kR;
      for (i64 tile = 0; tile <= num_tiles_; ++tile) {
        tile_starts_[tile] = tile * num_rows_ / num_tiles_;
      }
      pack_rows();
      const i64 width = block_.w_up != nullptr ? kSegment : kColumns;
      for (i64 column = 0; column < block_.num_columns; column += width) {
        select_columns(column, width);
        if (num_rows_ < Isa::kManyRows) {
          multiply_direct();
        } else {
          multiply_blocks(width, column + width >= block_.num_columns);
        }
        finish(column);
      }
    }
  }

 private:
  static constexpr i64 kB =
      kPanelTiles * kC * kBlockSteps * kStep * static_cast<i64>(sizeof(Element));
  static constexpr i64 kSumBytes = kChunkRows * kColumns * 4;
  static i64 a_bytes(i64 depth) {
    const i64 bytes =
        kChunkRows * (depth + kStep - 1) / kStep * kStep * static_cast<i64>(sizeof(Element));
    return (bytes + kChunkRows * kStep * static_cast<i64>(sizeof(Element)) + 63) / 64 * 64;
  }

  [[nodiscard]] i64 tile_start(i64 tile) const { return tile_starts_[tile]; }
  [[nodiscard]] TileSums sums_of(i64 row, i64 slot, bool add) const {
    return {sums_ + row * kColumns + slot, kColumns, add};
  }

  void pack_rows() {
    for (i64 tile = 0; tile < num_tiles_; ++tile) {
      const i64 first = tile_start(tile);
      const i64 count = tile_start(tile + 1) - first;
      for (i64 i = 0; i < count; ++i) {
        const void* row = block_.x_rows[first_row_ + first + i];
        Element* const to = a_ + first * steps_ * kStep + i * kStep;
        if constexpr (sizeof(Element) == 2) {
          pack_row<Math>(static_cast<const std::uint16_t*>(row), block_.depth, to, count * kStep);
        } else if (block_.x_type == DType::kFloat32) {
          pack_row<Math>(static_cast<const float*>(row), block_.depth, to, count * kStep);
        } else {
          pack_row<Math>(static_cast<const std::uint16_t*>(row), block_.depth, to, count * kStep);
        }
      }
    }
  }

  /// Notes the weight row of each slot; a segment's last tile repeats its last row.
  void select_columns(i64 column, i64 width) {
    const i64 left = block_.num_columns - column < width ? block_.num_columns - column : width;
    const bool gated = block_.w_up != nullptr;
    num_slots_[0] = gated || left < kSegment ? left : kSegment;
    num_slots_[1] = gated ? left : left - num_slots_[0];
    const char* const base[2] = {block_.w + column * block_.w_stride,
                                 gated ? block_.w_up + column * block_.w_stride
                                       : block_.w + (column + kSegment) * block_.w_stride};
    for (i64 segment = 0; segment < 2; ++segment) {
      for (i64 slot = 0; slot < kSegment; ++slot) {
        const i64 row = slot < num_slots_[segment] ? slot : num_slots_[segment] - 1;
        weights_[segment * kSegment + slot] =
            reinterpret_cast<const W*>(base[segment] + row * block_.w_stride);
      }
    }
  }

  /// Steps [first, first + count) of a row tile against C slots straight from memory.
  template <int C>
  void tile_from_memory(i64 tile, i64 slot, i64 first, i64 count, i64 ahead) {
    const i64 row = tile_start(tile);
    const i64 num = tile_start(tile + 1) - row;
    const Element* const a = a_ + row * steps_ * kStep + first * num * kStep;
    const W* w[C];
    for (int j = 0; j < C; ++j) {
      w[j] = weights_[slot + j] + first * kStep;
    }
    const i64 elements = block_.depth - first * kStep;
    const i64 whole = elements / kStep < count ? elements / kStep : count;
    const i64 part = whole < count ? elements - whole * kStep : 0;
    const TileSums to = sums_of(row, slot, first > 0);
    // Other widths serve lone tiles of one or two rows only.
    with_tile_rows<C == kC ? kR : (kR < 2 ? kR : 2)>(
        num, [&]<int R>() { tile_direct<Math, R, C>(a, w, whole, part, to, ahead); });
  }

  template <int C>
  void direct_columns() {
    for (i64 segment = 0; segment < 2; ++segment) {
      for (i64 slot = 0; slot < num_slots_[segment]; slot += C) {
        i64 first = 0;
        do {
          const i64 count = steps_ - first < kBlockSteps ? steps_ - first : kBlockSteps;
          for (i64 tile = 0; tile < num_tiles_; ++tile) {
            tile_from_memory<C>(tile, segment * kSegment + slot, first, count,
                                tile == 0 ? C * block_.w_stride : 0);
          }
          first += count;
        } while (first < steps_);
      }
    }
  }

  void multiply_direct() {
    if (num_rows_ == 1) {
      direct_columns<Isa::kColumnsOfOneRow>();
    } else if (num_rows_ == 2) {
      direct_columns<Isa::kColumnsOfTwoRows>();
    } else {
      direct_columns<kC>();
    }
  }

  /// Packs one block of the columns of some tiles as panel B.
  void pack_weights(i64 column_tile, i64 num, i64 first, i64 count) {
    const i64 left = block_.depth - first * kStep;
    const i64 depth = left < count * kStep ? left : count * kStep;
    for (i64 t = 0; t < num; ++t) {
      const W* const* const w = weights_ + column_slots_[column_tile + t];
      pack_columns<Math, kC>(w, first * kStep, depth, b_ + t * count * kC * kStep);
    }
  }

  void tile_from_panel(i64 tile, i64 column_tile, i64 panel, i64 first, i64 count) {
    const i64 row = tile_start(tile);
    const i64 num = tile_start(tile + 1) - row;
    const Element* const a = a_ + row * steps_ * kStep + first * num * kStep;
    const Element* const b = b_ + panel * count * kC * kStep;
    const TileSums to = sums_of(row, column_slots_[column_tile], first > 0);
    with_tile_rows<kR>(num, [&]<int R>() { tile_packed<Math, R, kC>(a, b, count, to); });
  }

  /// While the columns [c, c + num) are computed, fetches those that come next: the rest of this
  /// block, the next block's, or the next range's.
  void plan_next(i64 c, i64 num, i64 first, i64 count, bool last_range, i64 width) {
    const i64 calls = num_tiles_ * num;
    const i64 size = static_cast<i64>(sizeof(W));
    const i64 some = kPanelTiles < num_column_tiles_ ? kPanelTiles : num_column_tiles_;
    if (c + num < num_column_tiles_) {
      const i64 left = num_column_tiles_ - c - num;
      fetch_.plan(c + num, left < some ? left : some, first * kStep * size, count, calls);
    } else if (first + count < steps_) {
      const i64 next = first + count;
      const i64 left = steps_ - next;
      fetch_.plan(0, some, next * kStep * size, left < count ? left : count, calls);
    } else {
      const i64 all = steps_ < kBlockSteps ? steps_ : kBlockSteps;
      fetch_.plan(0, last_range ? 0 : some, width * block_.w_stride, all, calls);
    }
  }

  /// One block of one panel's columns against all rows, some row tiles at a time.
  void multiply_panel(i64 c, i64 num, i64 first, i64 count) {
    for (i64 group = 0; group < num_tiles_; group += kGroupTiles) {
      const i64 end = group + kGroupTiles < num_tiles_ ? group + kGroupTiles : num_tiles_;
      for (i64 t = 0; t < num; ++t) {
        for (i64 tile = group; tile < end; ++tile) {
          fetch_.share(weights_, column_slots_);
          tile_from_panel(tile, c + t, t, first, count);
        }
      }
    }
  }

  void multiply_blocks(i64 width, bool last_range) {
    num_column_tiles_ = 0;
    for (i64 segment = 0; segment < 2; ++segment) {
      for (i64 slot = 0; slot < num_slots_[segment]; slot += kC) {
        column_slots_[num_column_tiles_++] = segment * kSegment + slot;
      }
    }
    i64 first = 0;
    do {
      const i64 count = steps_ - first < kBlockSteps ? steps_ - first : kBlockSteps;
      for (i64 c = 0; c < num_column_tiles_; c += kPanelTiles) {
        const i64 left = num_column_tiles_ - c;
        const i64 num = left < kPanelTiles ? left : kPanelTiles;
        pack_weights(c, num, first, count);
        plan_next(c, num, first, count, last_range, width);
        multiply_panel(c, num, first, count);
      }
      first += count;
    } while (first < steps_);
  }

  /// Adds the bias, keeps what the activation is given if wanted, applies it, writes the outputs.
  void finish(i64 column) {
    const bool gated = block_.w_up != nullptr;
    const i64 count = gated ? num_slots_[0] : num_slots_[0] + num_slots_[1];
    for (i64 row = 0; row < num_rows_; ++row) {
      float* const sums = sums_ + row * kColumns;
      const bool absent = block_.x_rows[first_row_ + row] == nullptr;
      if (absent) {
        std::memset(sums, 0, kColumns * 4);
      } else if (block_.bias != nullptr) {
        add_bias<Isa>(block_.bias + column * block_.bias_size, block_.bias_type, count, sums);
        if (gated) {
          add_bias<Isa>(block_.bias_up + column * block_.bias_size, block_.bias_type, count,
                        sums + kSegment);
        }
      }
      if (block_.pre != nullptr) {
        char* const pre = block_.pre + (first_row_ + row) * block_.pre_stride;
        const i64 at = column * block_.pre_size;
        store_outputs<Isa>(sums, count, pre + at, block_.pre_type);
        if (gated) {
          store_outputs<Isa>(sums + kSegment, count, pre + block_.pre_up + at, block_.pre_type);
        }
      }
      if (block_.epilogue != Epilogue::kNone && !absent) {
        for (i64 slot = 0; slot < count; slot += kLanes) {
          Isa::store(sums + slot, activate<Isa>(block_.epilogue, Isa::load(sums + slot),
                                                Isa::load(sums + (gated ? kSegment : 0) + slot))
                                      .hidden);
        }
      }
      char* const y = block_.y + (first_row_ + row) * block_.y_stride;
      store_outputs<Isa>(sums, count, y + column * block_.y_size, block_.y_type);
    }
  }

  const ProductBlock& block_;
  i64 steps_;
  Element* a_;
  Element* b_;
  float* sums_;
  i64 first_row_ = 0;
  i64 num_rows_ = 0;
  i64 num_tiles_ = 0;
  i64 tile_starts_[kChunkRows / kR + 2] = {};
  i64 num_slots_[2] = {0, 0};
  i64 num_column_tiles_ = 0;
  i64 column_slots_[kColumns / kC] = {};  // first slot of each tile of columns
  WeightFetch<W, kC, kStep> fetch_;
  const W* weights_[kColumns] = {};
};

/// fp32 arithmetic for any types.
template <class Isa>
void run_fp32(const ProductBlock& block) {
  if (block.w_type == DType::kFloat32) {
    ProductLoops<Fp32Math<Isa>, float>(block).run();
  } else {
    ProductLoops<Fp32Math<Isa>, std::uint16_t>(block).run();
  }
}

}  // namespace coterie::kernels
