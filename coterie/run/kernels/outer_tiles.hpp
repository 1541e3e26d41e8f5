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

/// Panel A of a tile of R rows, [k][R].
template <class Scalar, int R>
struct ByDepth {
  const Scalar* at;
  COTERIE_INLINE Scalar operator()(i64 k, int i) const { return at[k * R + i]; }
};

/// Panel A of a tile, rows Stride apart.
template <class Scalar, i64 Stride>
struct ByRows {
  const Scalar* at;
  COTERIE_INLINE Scalar operator()(i64 k, int i) const { return at[i * Stride + k]; }
};

/// Panel B of a tile, [k][columns of a tile].
template <class V>
struct PackedLines {
  const typename V::Scalar* at;
  i64 depth;
  COTERIE_INLINE typename V::Vec load(i64 k, int j) const {
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
    typename V::Vec w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      w[j] = b.load(k, j);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const typename V::Vec x = V::broadcast(a(k, i));
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
