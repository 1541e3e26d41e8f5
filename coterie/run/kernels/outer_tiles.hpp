// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: the register tile of outer products and the layouts that feed it. See
// vector_types.hpp and outer_loops.hpp.

#include "coterie/run/kernels/product_tiles.hpp"

namespace coterie::kernels {

/// Elements [first, first + count) of a line, widened to V's type.
template <class V>
void widen_line(const char* line, DType type, i64 first, i64 count, typename V::Scalar* to) {
  using Scalar = typename V::Scalar;
  if (type != DType::kBfloat16) {
    const auto* const from = reinterpret_cast<const Scalar*>(line) + first;
    i64 i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) {
      V::store(to + i, V::load(from + i));
    }
    for (; i < count; ++i) {
      to[i] = from[i];
    }
    return;
  }
  if constexpr (sizeof(Scalar) == 4) {
    const auto* const from = reinterpret_cast<const std::uint16_t*>(line) + first;
    i64 i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) {
      V::store(to + i, V::load_bf16(from + i));
    }
    for (; i < count; ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
      std::memcpy(to + i, &bits, 4);
    }
  }
}

/// Pairs of k for V that multiplies two bf16 at a time, the second value of a 32-bit element first:
/// columns [first, first + count) of the lines of an even k and of the k after it (null: zeros).
template <class V>
void interleave_lines(const char* even, const char* odd, i64 first, i64 count,
                      typename V::Element* to) {
  const auto* const high = reinterpret_cast<const std::uint16_t*>(even) + first;
  const auto* const low =
      odd == nullptr ? nullptr : reinterpret_cast<const std::uint16_t*>(odd) + first;
  const i64 whole = count / V::kLanes;
  for (i64 i = 0; i < whole; ++i) {
    V::store(to + i * V::kLanes,
             V::pairs(high + i * V::kLanes, low == nullptr ? nullptr : low + i * V::kLanes));
  }
  for (i64 i = whole * V::kLanes; i < count; ++i) {
    to[i] = static_cast<typename V::Element>(high[i]) << 16 |
            (low == nullptr ? 0U : static_cast<typename V::Element>(low[i]));
  }
}

/// Pairs [first, first + count) of a line that holds all of its `depth`.
template <class V>
void pair_line(const char* line, i64 depth, i64 first, i64 count, typename V::Element* to) {
  const auto* const from = reinterpret_cast<const std::uint16_t*>(line) + 2 * first;
  const i64 whole = 2 * (first + count) <= depth ? count : count - 1;
  for (i64 p = 0; p < whole; ++p) {
    typename V::Element two;
    std::memcpy(&two, from + 2 * p, sizeof(two));
    to[p] = two << 16 | two >> 16;
  }
  if (whole < count) {
    to[whole] = static_cast<typename V::Element>(from[2 * whole]) << 16;
  }
}

/// Panel A of a tile of R rows, [k][R].
template <class Element, int R>
struct ByDepth {
  const Element* at;
  COTERIE_INLINE Element operator()(i64 k, int i) const { return at[k * R + i]; }
};

/// Panel A of a tile, rows Stride apart.
template <class Element, i64 Stride>
struct ByRows {
  const Element* at;
  COTERIE_INLINE Element operator()(i64 k, int i) const { return at[i * Stride + k]; }
};

/// Panel B of a tile, [k][columns of a tile].
template <class V>
struct PackedLines {
  const typename V::Element* at;
  i64 depth;
  COTERIE_INLINE typename V::Operand load(i64 k, int j) const {
    return V::load(at + (k * V::kOuterVectors + j) * V::kLanes);
  }
};

/// B where it lies: line k from column `first` on.
template <class V, class T>
struct LinesInPlace {
  const char* const* lines;
  i64 first;
  i64 depth;
  COTERIE_INLINE typename V::Vec load(i64 k, int j) const {
    const T* const from = reinterpret_cast<const T*>(lines[k]) + first + j * V::kLanes;
    if constexpr (sizeof(T) == 2) {
      return V::load_bf16(from);
    } else {
      return V::load(from);
    }
  }
};

/// As LinesInPlace, in pairs: lines 2k and 2k + 1, which may be null.
template <class V>
struct PairsInPlace {
  const char* const* lines;
  i64 first;
  i64 depth;
  COTERIE_INLINE typename V::Operand load(i64 k, int j) const {
    const i64 at = first + j * V::kLanes;
    const auto* const odd = reinterpret_cast<const std::uint16_t*>(lines[2 * k + 1]);
    return V::pairs(reinterpret_cast<const std::uint16_t*>(lines[2 * k]) + at,
                    odd == nullptr ? nullptr : odd + at);
  }
};

/// Where a tile's sums rest.
template <class Scalar>
struct TileOfSums {
  Scalar* at;
  i64 stride;
  bool add;  ///< start from them, not from zero
};

/// sums (+)= sum over k of a(k, i) b(k, .), i < R, one multiply-add after the other.
template <class V, int R, class A, class B>
COTERIE_INLINE void outer_tile(const A& a, const B& b, const TileOfSums<typename V::Scalar>& to) {
  constexpr int kVectors = V::kOuterVectors;
  typename V::Vec sum[R][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = to.add ? V::load(to.at + i * to.stride + j * V::kLanes) : V::zero();
    }
  }
  for (i64 k = 0; k < b.depth; ++k) {
    typename V::Operand w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      w[j] = b.load(k, j);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const typename V::Operand x = V::broadcast(a(k, i));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = V::multiply_add(x, w[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      V::store(to.at + i * to.stride + j * V::kLanes, sum[i][j]);
    }
  }
}

}  // namespace coterie::kernels
