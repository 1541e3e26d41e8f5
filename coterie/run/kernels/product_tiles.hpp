// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: the register tiles of a product. See vector_types.hpp.

#include "coterie/run/kernels/product_panels.hpp"

namespace coterie::kernels {

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

/// Calls body.template operator()<R>() for R = num, which lies in [1, Most].
template <int Most, class Body>
COTERIE_INLINE void with_tile_rows(i64 num, const Body& body) {
  static_assert(Most >= 1 && Most <= 8);
  switch (num) {
    case 1: body.template operator()<1>(); break;
#define COTERIE_TILE_ROWS(R)         \
  case R:                            \
    if constexpr (R <= Most) {       \
      body.template operator()<R>(); \
    }                                \
    break
      COTERIE_TILE_ROWS(2);
      COTERIE_TILE_ROWS(3);
      COTERIE_TILE_ROWS(4);
      COTERIE_TILE_ROWS(5);
      COTERIE_TILE_ROWS(6);
      COTERIE_TILE_ROWS(7);
      COTERIE_TILE_ROWS(8);
#undef COTERIE_TILE_ROWS
    default: break;
  }
}

}  // namespace coterie::kernels
