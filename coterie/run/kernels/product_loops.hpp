// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: the loops of a product, written once for all instruction sets. Each
// product_<isa>.cpp includes this file under its own compiler flags and instantiates it with types
// of an unnamed namespace, so that no code compiled for one processor can serve another.
//
// The order of summation is the same wherever an output is computed: lane l of its accumulator sums
// the products of k = l, l + L, l + 2L ... upwards (L lanes; for bf16 pairs see Bf16Math), then the
// lanes are added in the tree of Isa::reduce. Tiles, blocks and panels only decide when.
//
//   rows in chunks of kChunkRows, packed once as panel A: [tile][step][row of tile][step elements]
//   outputs in two segments of kSegment columns (gate | up, or the first and second half)
//   few rows:  weights straight from memory, one register tile after the other
//   many rows: weights of kBlockSteps steps packed as panel B, used by all rows while in the cache
//   the accumulators' lanes wait in `lanes` between blocks of steps, unrounded

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

/// Where the accumulators of a register tile wait: lanes of row i, column j at at[(i * stride +
/// j)].
struct LaneBlock {
  float* at;
  i64 stride;  // in columns
};

/// A register tile over `steps` whole steps and then `part` elements of one more: R rows of panel A
/// times C weight rows given by pointers. `resume`: continue from the lanes stored before.
template <class Math, int R, int C, class T>
COTERIE_INLINE void tile_direct(const typename Math::Element* a, const T* const* w, i64 steps,
                                i64 part, LaneBlock lanes, bool resume, i64 ahead) {
  using Isa = typename Math::Isa;
  typename Isa::Vec sum[R][C];
  const T* b[C];
  for (int j = 0; j < C; ++j) {
    b[j] = w[j];
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sum[i][j] = resume ? Isa::load(lanes.at + (i * lanes.stride + j) * Isa::kLanes) : Isa::zero();
    }
  }
  constexpr i64 kPerLine = 64 / static_cast<i64>(sizeof(T) * Math::kStep);
  for (i64 s = 0; s < steps; ++s) {
    typename Math::Operand x[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      x[i] = Math::load(a + i * Math::kStep);
    }
    a += R * Math::kStep;
    if (kPerLine <= 1 || s % kPerLine == 0) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        __builtin_prefetch(reinterpret_cast<const char*>(b[j] + s * Math::kStep) + ahead, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const typename Math::Operand v = Math::load(b[j] + s * Math::kStep);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        sum[i][j] = Math::step(x[i], v, sum[i][j]);
      }
    }
  }
  if (part > 0) {
    for (int j = 0; j < C; ++j) {
      const typename Math::Operand v = load_part<Math>(b[j] + steps * Math::kStep, part);
      for (int i = 0; i < R; ++i) {
        sum[i][j] = Math::step(Math::load(a + i * Math::kStep), v, sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      Isa::store(lanes.at + (i * lanes.stride + j) * Isa::kLanes, sum[i][j]);
    }
  }
}

/// As tile_direct with both operands packed: panel B is [step][C columns][step elements].
template <class Math, int R, int C>
COTERIE_INLINE void tile_packed(const typename Math::Element* a, const typename Math::Element* b,
                                i64 steps, LaneBlock lanes, bool resume) {
  using Isa = typename Math::Isa;
  typename Isa::Vec sum[R][C];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sum[i][j] = resume ? Isa::load(lanes.at + (i * lanes.stride + j) * Isa::kLanes) : Isa::zero();
    }
  }
  for (i64 s = 0; s < steps; ++s) {
    typename Math::Operand v[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      v[j] = Math::load(b + j * Math::kStep);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const typename Math::Operand x = Math::load(a + i * Math::kStep);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        sum[i][j] = Math::step(x, v[j], sum[i][j]);
      }
    }
    a += R * Math::kStep;
    b += C * Math::kStep;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      Isa::store(lanes.at + (i * lanes.stride + j) * Isa::kLanes, sum[i][j]);
    }
  }
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
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
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
  static constexpr i64 kSegment = Isa::kSegment;  // a multiple of kC and of kLanes
  static constexpr i64 kColumns = 2 * kSegment;
  static constexpr i64 kChunkRows = Isa::kChunkRows;
  static constexpr i64 kBlockSteps = Isa::kBlockSteps;
  static constexpr i64 kGroupTiles =
      Isa::kGroupTiles;  // row tiles that share the first-level cache

 public:
  static i64 scratch_bytes(i64 depth) { return a_bytes(depth) + kB + kLaneBytes + kColumns * 4; }

  explicit ProductLoops(const ProductBlock& block)
      : block_(block),
        steps_((block.depth + kStep - 1) / kStep),
        a_(reinterpret_cast<Element*>(block.scratch)),
        b_(reinterpret_cast<Element*>(block.scratch + a_bytes(block.depth))),
        lanes_(reinterpret_cast<float*>(block.scratch + a_bytes(block.depth) + kB)),
        sums_(reinterpret_cast<float*>(block.scratch + a_bytes(block.depth) + kB + kLaneBytes)) {}

  void run() {
    const i64 num_chunks = (block_.num_rows + kChunkRows - 1) / kChunkRows;
    for (i64 chunk = 0; chunk < num_chunks; ++chunk) {
      first_row_ = chunk * block_.num_rows / num_chunks;
      num_rows_ = (chunk + 1) * block_.num_rows / num_chunks - first_row_;
      num_tiles_ = (num_rows_ + kR - 1) / kR;
      pack_rows();
      const i64 width = block_.w_up != nullptr ? kSegment : kColumns;
      for (i64 column = 0; column < block_.num_columns; column += width) {
        select_columns(column, width);
        if (num_rows_ < Isa::kPackRows) {
          multiply_direct();
        } else {
          multiply_packed();
        }
        finish(column);
      }
    }
  }

 private:
  static constexpr i64 kB = kColumns * kBlockSteps * kStep * static_cast<i64>(sizeof(Element));
  static constexpr i64 kLaneBytes = kChunkRows * kColumns * kLanes * 4;
  static i64 a_bytes(i64 depth) {
    const i64 bytes =
        kChunkRows * (depth + kStep - 1) / kStep * kStep * static_cast<i64>(sizeof(Element));
    return (bytes + kChunkRows * kStep * static_cast<i64>(sizeof(Element)) + 63) / 64 * 64;
  }

  [[nodiscard]] i64 tile_start(i64 tile) const { return tile * num_rows_ / num_tiles_; }
  [[nodiscard]] LaneBlock lanes_of(i64 row, i64 slot) const {
    return {lanes_ + (row * kColumns + slot) * kLanes, kColumns};
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
  void tile_from_memory(i64 tile, i64 slot, i64 first, i64 count) {
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
    const LaneBlock lanes = lanes_of(row, slot);
    const i64 ahead = C * block_.w_stride;
    switch (num) {
      case 1: tile_direct<Math, 1, C>(a, w, whole, part, lanes, first > 0, ahead); break;
      case 2: tile_direct<Math, 2, C>(a, w, whole, part, lanes, first > 0, ahead); break;
      default:
        if constexpr (C == kC) {  // other widths serve lone tiles of one or two rows only
          larger_tile_from_memory(num, a, w, whole, part, lanes, first > 0, ahead);
        }
        break;
    }
  }

  void larger_tile_from_memory(i64 num, const Element* a, const W* const* w, i64 whole, i64 part,
                               LaneBlock lanes, bool resume, i64 ahead) {
    switch (num) {
      case 3: tile_direct<Math, 3, kC>(a, w, whole, part, lanes, resume, ahead); break;
      case 4: tile_direct<Math, 4, kC>(a, w, whole, part, lanes, resume, ahead); break;
      case 5:
        if constexpr (kR >= 5) {
          tile_direct<Math, 5, kC>(a, w, whole, part, lanes, resume, ahead);
        }
        break;
      default:
        if constexpr (kR >= 6) {
          tile_direct<Math, 6, kC>(a, w, whole, part, lanes, resume, ahead);
        }
        break;
    }
  }

  template <int C>
  void direct_columns() {
    const i64 block = num_tiles_ == 1 ? steps_ : kBlockSteps;
    for (i64 segment = 0; segment < 2; ++segment) {
      for (i64 slot = 0; slot < num_slots_[segment]; slot += C) {
        i64 first = 0;
        do {
          const i64 count = steps_ - first < block ? steps_ - first : block;
          for (i64 tile = 0; tile < num_tiles_; ++tile) {
            tile_from_memory<C>(tile, segment * kSegment + slot, first, count);
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

  void pack_weights(i64 first, i64 count) {
    const i64 left = block_.depth - first * kStep;
    const i64 depth = left < count * kStep ? left : count * kStep;
    for (i64 segment = 0; segment < 2; ++segment) {
      const i64 used = (num_slots_[segment] + kC - 1) / kC * kC;
      for (i64 s = 0; s < used; ++s) {
        const i64 slot = segment * kSegment + s;
        Element* const to = b_ + (slot / kC * count * kC + slot % kC) * kStep;
        pack_row<Math>(weights_[slot] + first * kStep, depth, to, kC * kStep);
      }
    }
  }

  void tile_from_panel(i64 tile, i64 slot, i64 first, i64 count) {
    const i64 row = tile_start(tile);
    const i64 num = tile_start(tile + 1) - row;
    const Element* const a = a_ + row * steps_ * kStep + first * num * kStep;
    const Element* const b = b_ + slot / kC * count * kC * kStep;
    const LaneBlock lanes = lanes_of(row, slot);
    switch (num) {
      case 1: tile_packed<Math, 1, kC>(a, b, count, lanes, first > 0); break;
      case 2: tile_packed<Math, 2, kC>(a, b, count, lanes, first > 0); break;
      case 3: tile_packed<Math, 3, kC>(a, b, count, lanes, first > 0); break;
      case 4: tile_packed<Math, 4, kC>(a, b, count, lanes, first > 0); break;
      case 5:
        if constexpr (kR >= 5) {
          tile_packed<Math, 5, kC>(a, b, count, lanes, first > 0);
        }
        break;
      default:
        if constexpr (kR >= 6) {
          tile_packed<Math, 6, kC>(a, b, count, lanes, first > 0);
        }
        break;
    }
  }

  void multiply_packed() {
    i64 first = 0;
    do {
      const i64 count = steps_ - first < kBlockSteps ? steps_ - first : kBlockSteps;
      pack_weights(first, count);
      for (i64 group = 0; group < num_tiles_; group += kGroupTiles) {
        const i64 end = group + kGroupTiles < num_tiles_ ? group + kGroupTiles : num_tiles_;
        for (i64 segment = 0; segment < 2; ++segment) {
          for (i64 slot = 0; slot < num_slots_[segment]; slot += kC) {
            for (i64 tile = group; tile < end; ++tile) {
              tile_from_panel(tile, segment * kSegment + slot, first, count);
            }
          }
        }
      }
      first += count;
    } while (first < steps_);
  }

  /// Adds up the lanes of all outputs, applies the gate, writes.
  void finish(i64 column) {
    for (i64 row = 0; row < num_rows_; ++row) {
      const bool absent = block_.x_rows[first_row_ + row] == nullptr;
      const float* const lanes = lanes_ + row * kColumns * kLanes;
      for (i64 segment = 0; segment < 2; ++segment) {
        for (i64 slot = 0; slot < num_slots_[segment]; slot += kLanes) {
          const i64 at = segment * kSegment + slot;
          Isa::store(sums_ + at, Isa::reduce(lanes + at * kLanes));
        }
      }
      i64 count = num_slots_[0] + num_slots_[1];
      if (block_.w_up != nullptr) {
        count = num_slots_[0];
        for (i64 slot = 0; slot < count; slot += kLanes) {
          const typename Isa::Vec gate = Isa::load(sums_ + slot);
          const typename Isa::Vec up = Isa::load(sums_ + kSegment + slot);
          Isa::store(sums_ + slot, gate / (exponential<Isa>(-gate) + 1.0F) * up);
        }
      }
      if (absent) {
        std::memset(sums_, 0, static_cast<std::size_t>(count) * 4);
      }
      char* const y = block_.y + (first_row_ + row) * block_.y_stride;
      store_outputs<Isa>(sums_, count, y + column * size_of(block_.y_type), block_.y_type);
    }
  }

  const ProductBlock& block_;
  i64 steps_;
  Element* a_;
  Element* b_;
  float* lanes_;
  float* sums_;
  i64 first_row_ = 0;
  i64 num_rows_ = 0;
  i64 num_tiles_ = 0;
  i64 num_slots_[2] = {0, 0};
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
