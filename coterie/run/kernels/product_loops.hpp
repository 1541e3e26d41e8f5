// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: the loops of a product, written once for all instruction sets. Each
// product_<isa>.cpp includes this file under its own compiler flags and instantiates it with types
// of an unnamed namespace, so that no code compiled for one processor can serve another.
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

#include <cstring>

#include "coterie/run/kernels/product_block.hpp"

namespace coterie::kernels {

using i64 = std::int64_t;

#define COTERIE_INLINE inline __attribute__((always_inline))

/// fp32 arithmetic: bf16 operands are widened, exactly, when packed or loaded.
template <class I>
struct Fp32Math {
  using Isa = I;
  using Element = float;  // of panels
  using Operand = typename Isa::Vec;
  static constexpr i64 kStep = Isa::kLanes;

  static COTERIE_INLINE Operand load(const float* p) { return Isa::load(p); }
  static COTERIE_INLINE Operand load(const std::uint16_t* p) { return Isa::load_bf16(p); }
  static COTERIE_INLINE void store(float* p, Operand v) { Isa::store(p, v); }
  static COTERIE_INLINE typename Isa::Vec step(Operand a, Operand b, typename Isa::Vec sum) {
    return Isa::multiply_add(a, b, sum);
  }
};

/// The elements [0, count) at p, then zeros up to a whole step.
template <class Math, class T>
COTERIE_INLINE typename Math::Operand load_part(const T* p, i64 count) {
  alignas(64) T buffer[Math::kStep] = {};
  for (i64 i = 0; i < count; ++i) {
    buffer[i] = p[i];
  }
  return Math::load(buffer);
}

/// Packs one row of `depth` elements to steps that lie `stride` elements apart; null packs zeros.
template <class Math, class T>
void pack_row(const T* row, i64 depth, typename Math::Element* to, i64 stride) {
  const i64 whole = row == nullptr ? 0 : depth / Math::kStep;
  for (i64 s = 0; s < whole; ++s) {
    Math::store(to + s * stride, Math::load(row + s * Math::kStep));
  }
  const i64 steps = (depth + Math::kStep - 1) / Math::kStep;
  for (i64 s = whole; s < steps; ++s) {
    const i64 left = row == nullptr ? 0 : depth - s * Math::kStep;
    Math::store(to + s * stride, load_part<Math>(row + s * Math::kStep * (row != nullptr), left));
  }
}

/// Packs elements [first, first + depth) of C weight rows: [step][C][step elements].
template <class Math, int C, class T>
void pack_columns(const T* const* w, i64 first, i64 depth, typename Math::Element* to) {
  const T* row[C];
  for (int j = 0; j < C; ++j) {
    row[j] = w[j] + first;
  }
  const i64 whole = depth / Math::kStep;
  for (i64 s = 0; s < whole; ++s) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      Math::store(to + j * Math::kStep, Math::load(row[j] + s * Math::kStep));
    }
    to += C * Math::kStep;
  }
  if (whole * Math::kStep < depth) {
    for (int j = 0; j < C; ++j) {
      const T* const at = row[j] + whole * Math::kStep;
      Math::store(to + j * Math::kStep, load_part<Math>(at, depth - whole * Math::kStep));
    }
  }
}

/// The sums of a tile: row i, column j at at[i * stride + j].
struct TileSums {
  float* at;
  i64 stride;
  bool add;  ///< add to what is there: a block after the first
};

/// Adds up the lanes of R x C accumulators and stores or adds the block's sums. C is 4 or 8.
template <class Isa, int R, int C>
COTERIE_INLINE void finish_block(const typename Isa::Vec (&sum)[R][C], const TileSums& to) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < C; j += 4) {
      float* const at = to.at + i * to.stride + j;
      const typename Isa::Four block =
          Isa::reduce_four(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
      typename Isa::Four total = block;
      if (to.add) {
        std::memcpy(&total, at, sizeof(total));
        total = total + block;
      }
      std::memcpy(at, &total, sizeof(total));
    }
  }
}

/// One step of a register tile: R rows at a, C weights at w(j). The smaller side stays in
/// registers.
template <class Math, int R, int C, class Weights>
COTERIE_INLINE void tile_step(const typename Math::Element* a, const Weights& w,
                              typename Math::Isa::Vec (&sum)[R][C]) {
  typename Math::Operand x[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    x[i] = Math::load(a + i * Math::kStep);
  }
#pragma GCC unroll 8
  for (int j = 0; j < C; ++j) {
    const typename Math::Operand v = w(j);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      sum[i][j] = Math::step(x[i], v, sum[i][j]);
    }
  }
}

template <class Isa, int R, int C>
COTERIE_INLINE void clear(typename Isa::Vec (&sum)[R][C]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sum[i][j] = Isa::zero();
    }
  }
}

/// A register tile over one block, `steps` whole steps and then `part` elements of one more: R rows
/// of panel A times C weight rows given by pointers. Fetches the cache lines `ahead` bytes further
/// on.
template <class Math, int R, int C, class T>
COTERIE_INLINE void tile_direct(const typename Math::Element* a, const T* const* w, i64 steps,
                                i64 part, const TileSums& to, i64 ahead) {
  typename Math::Isa::Vec sum[R][C];
  clear<typename Math::Isa>(sum);
  constexpr i64 kLineSteps = 64 / static_cast<i64>(sizeof(T) * Math::kStep);
  constexpr i64 kPerLine = kLineSteps > 1 ? kLineSteps : 1;  // steps in a cache line of weights
  const T* b[C];
#pragma GCC unroll 8
  for (int j = 0; j < C; ++j) {
    b[j] = w[j];
  }
  const auto step = [&](i64 s) {
    tile_step<Math>(
        a + s * R * Math::kStep, [&](int j) { return Math::load(b[j] + s * Math::kStep); }, sum);
  };
  i64 s = 0;
  if (ahead != 0) {
    for (; s + kPerLine <= steps; s += kPerLine) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        __builtin_prefetch(reinterpret_cast<const char*>(b[j] + s * Math::kStep) + ahead, 0, 2);
      }
#pragma GCC unroll 8
      for (i64 u = 0; u < kPerLine; ++u) {
        step(s + u);
      }
    }
  } else {
    for (; s + 4 <= steps; s += 4) {
#pragma GCC unroll 4
      for (i64 u = 0; u < 4; ++u) {
        step(s + u);
      }
    }
  }
  for (; s < steps; ++s) {
    step(s);
  }
  a += steps * R * Math::kStep;
  if (part > 0) {
    tile_step<Math>(
        a, [&](int j) { return load_part<Math>(b[j] + steps * Math::kStep, part); }, sum);
  }
  finish_block<typename Math::Isa>(sum, to);
}

/// As tile_direct with both operands packed: panel B is [step][C columns][step elements].
template <class Math, int R, int C>
COTERIE_INLINE void tile_packed(const typename Math::Element* a, const typename Math::Element* b,
                                i64 steps, const TileSums& to) {
  typename Math::Isa::Vec sum[R][C];
  clear<typename Math::Isa>(sum);
#pragma GCC unroll 4
  for (i64 s = 0; s < steps; ++s) {
    tile_step<Math>(
        a, [&](int j) { return Math::load(b + j * Math::kStep); }, sum);
    a += R * Math::kStep;
    b += C * Math::kStep;
  }
  finish_block<typename Math::Isa>(sum, to);
}

/// exp(v) for v <= 88, elementwise, about 2 ulp; 0 below -87.
template <class Isa>
COTERIE_INLINE typename Isa::Vec exponential(typename Isa::Vec v) {
  using Vec = typename Isa::Vec;
  using Int = typename Isa::Int;
  const Vec high = Isa::zero() + 88.0F;
  const Vec low = Isa::zero() - 87.0F;
  v = v > high ? high : v;
  v = v < low ? low : v;
  const Vec magic = Isa::zero() + 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec n = (v * 1.44269504088896341F + magic) - magic;
  const Vec r = (v - n * 0.693359375F) + n * 2.12194440e-4F;
  Vec p = Isa::zero() + 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Int exponent = (__builtin_convertvector(n, Int) + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return p * scale;
}

/// Writes `count` fp32 values as the output's type, rounded to nearest even.
template <class Isa>
void store_outputs(const float* from, i64 count, char* to, DType type) {
  if (type == DType::kFloat32) {
    i64 i = 0;
    for (; i + Isa::kLanes <= count; i += Isa::kLanes) {
      Isa::store(reinterpret_cast<float*>(to) + i, Isa::load(from + i));
    }
    std::memcpy(to + i * 4, from + i, static_cast<std::size_t>(count - i) * 4);
    return;
  }
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  for (i64 i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, 4);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    out[i] = static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
}

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
    switch (num) {
      case 1: tile_direct<Math, 1, C>(a, w, whole, part, to, ahead); break;
      case 2: tile_direct<Math, 2, C>(a, w, whole, part, to, ahead); break;
      default:
        if constexpr (C == kC) {  // other widths serve lone tiles of one or two rows only
          larger_tile_from_memory(num, a, w, whole, part, to, ahead);
        }
        break;
    }
  }

  void larger_tile_from_memory(i64 num, const Element* a, const W* const* w, i64 whole, i64 part,
                               const TileSums& to, i64 ahead) {
    switch (num) {
      case 3: tile_direct<Math, 3, kC>(a, w, whole, part, to, ahead); break;
      case 4:
        if constexpr (kR >= 4) {
          tile_direct<Math, 4, kC>(a, w, whole, part, to, ahead);
        }
        break;
      case 5:
        if constexpr (kR >= 5) {
          tile_direct<Math, 5, kC>(a, w, whole, part, to, ahead);
        }
        break;
      default:
        if constexpr (kR >= 6) {
          tile_direct<Math, 6, kC>(a, w, whole, part, to, ahead);
        }
        break;
    }
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
    switch (num) {
      case 1: tile_packed<Math, 1, kC>(a, b, count, to); break;
      case 2: tile_packed<Math, 2, kC>(a, b, count, to); break;
      case 3: tile_packed<Math, 3, kC>(a, b, count, to); break;
      case 4:
        if constexpr (kR >= 4) {
          tile_packed<Math, 4, kC>(a, b, count, to);
        }
        break;
      case 5:
        if constexpr (kR >= 5) {
          tile_packed<Math, 5, kC>(a, b, count, to);
        }
        break;
      default:
        if constexpr (kR >= 6) {
          tile_packed<Math, 6, kC>(a, b, count, to);
        }
        break;
    }
  }

  /// Plans to fetch one block of the weights of `num` column tiles, `calls` shares in all.
  void plan_fetch(i64 column_tile, i64 num, i64 skip, i64 count, i64 calls) {
    fetch_skip_ = skip;
    fetch_tile_ = column_tile;
    fetch_end_ = column_tile + num;
    fetch_column_ = 0;
    fetch_line_ = 0;
    fetch_lines_ = (count * kStep * static_cast<i64>(sizeof(W)) + 63) / 64;
    fetch_share_ = (num * kC * fetch_lines_ + calls - 1) / calls;
  }

  /// One tile's share of the plan, so that memory works while the tiles compute.
  void fetch_ahead() {
    i64 left = fetch_share_;
    while (left > 0 && fetch_tile_ < fetch_end_) {
      const W* const row = weights_[column_slots_[fetch_tile_] + fetch_column_];
      const char* const at = reinterpret_cast<const char*>(row) + fetch_skip_;
      const i64 end = fetch_lines_ - fetch_line_ < left ? fetch_lines_ : fetch_line_ + left;
      left -= end - fetch_line_;
      for (i64 line = fetch_line_; line < end; ++line) {
        __builtin_prefetch(at + line * 64, 0, 2);
      }
      fetch_line_ = end;
      if (end == fetch_lines_) {
        fetch_line_ = 0;
        fetch_column_ = fetch_column_ + 1 == kC ? 0 : fetch_column_ + 1;
        fetch_tile_ += fetch_column_ == 0;
      }
    }
  }

  /// While the columns [c, c + num) are computed, fetches those that come next: the rest of this
  /// block, the next block's, or the next range's.
  void plan_next(i64 c, i64 num, i64 first, i64 count, bool last_range, i64 width) {
    const i64 calls = num_tiles_ * num;
    const i64 size = static_cast<i64>(sizeof(W));
    const i64 some = kPanelTiles < num_column_tiles_ ? kPanelTiles : num_column_tiles_;
    if (c + num < num_column_tiles_) {
      const i64 left = num_column_tiles_ - c - num;
      plan_fetch(c + num, left < some ? left : some, first * kStep * size, count, calls);
    } else if (first + count < steps_) {
      const i64 next = first + count;
      const i64 left = steps_ - next;
      plan_fetch(0, some, next * kStep * size, left < count ? left : count, calls);
    } else {
      const i64 all = steps_ < kBlockSteps ? steps_ : kBlockSteps;
      plan_fetch(0, last_range ? 0 : some, width * block_.w_stride, all, calls);
    }
  }

  /// One block of one panel's columns against all rows, some row tiles at a time.
  void multiply_panel(i64 c, i64 num, i64 first, i64 count) {
    for (i64 group = 0; group < num_tiles_; group += kGroupTiles) {
      const i64 end = group + kGroupTiles < num_tiles_ ? group + kGroupTiles : num_tiles_;
      for (i64 t = 0; t < num; ++t) {
        for (i64 tile = group; tile < end; ++tile) {
          fetch_ahead();
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

  /// Applies the gate to the sums and writes the outputs.
  void finish(i64 column) {
    const bool gated = block_.w_up != nullptr;
    const i64 count = gated ? num_slots_[0] : num_slots_[0] + num_slots_[1];
    for (i64 row = 0; row < num_rows_; ++row) {
      float* const sums = sums_ + row * kColumns;
      if (gated) {
        for (i64 slot = 0; slot < count; slot += kLanes) {
          const typename Isa::Vec gate = Isa::load(sums + slot);
          const typename Isa::Vec up = Isa::load(sums + kSegment + slot);
          Isa::store(sums + slot, gate / (exponential<Isa>(-gate) + 1.0F) * up);
        }
      }
      if (block_.x_rows[first_row_ + row] == nullptr) {
        std::memset(sums, 0, static_cast<std::size_t>(count) * 4);
      }
      char* const y = block_.y + (first_row_ + row) * block_.y_stride;
      store_outputs<Isa>(sums, count, y + column * size_of(block_.y_type), block_.y_type);
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
  i64 fetch_skip_ = 0;                    // bytes from weights_ to what is fetched
  i64 fetch_tile_ = 0;                    // the tile of columns in turn
  i64 fetch_end_ = 0;
  i64 fetch_column_ = 0;  // the column in turn
  i64 fetch_line_ = 0;    // the cache line in turn
  i64 fetch_lines_ = 0;   // lines a column
  i64 fetch_share_ = 0;   // lines a tile
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
