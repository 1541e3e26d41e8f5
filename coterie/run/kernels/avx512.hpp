// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room, for files compiled with AVX-512 flags only.

#include <immintrin.h>

#include "coterie/run/kernels/outer_loops.hpp"
#include "coterie/run/kernels/product_loops.hpp"

namespace coterie::kernels {
namespace {

/// Sixteen lanes. 6 x 4 accumulators, 6 rows and a weight take 31 of the 32 registers.
struct Avx512 {
  using Scalar = float;
  using Element = float;
  using Vec = __m512;
  using Operand = Vec;
  static constexpr bool kPairs = false;
  using Four = __m128;
  typedef std::int32_t Int __attribute__((vector_size(64)));
  static constexpr i64 kLanes = 16;
  static constexpr int kTileRows = 6;
  static constexpr int kTileColumns = 4;
  static constexpr int kColumnsOfOneRow = 8;
  static constexpr int kColumnsOfTwoRows = 8;
  static constexpr i64 kSegment = 96;
  static constexpr i64 kPanelTiles = 12;
  static constexpr i64 kChunkRows = 72;
  static constexpr i64 kBlockSteps = 32;
  static constexpr i64 kGroupTiles = 1;
  static constexpr int kOuterRows = 8;
  static constexpr int kOuterVectors = 3;
  static constexpr i64 kOuterDepth = 128;
  static constexpr i64 kManyRows = 20;

  static COTERIE_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static COTERIE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static COTERIE_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static COTERIE_INLINE Vec load_bf16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static COTERIE_INLINE Vec broadcast(float v) { return _mm512_set1_ps(v); }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm512_fmadd_ps(a, b, sum);
  }

  /// In each quarter: lanes 0 + 1 and 2 + 3 of a, then those of b.
  static COTERIE_INLINE Vec add_pairs(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  }
  /// The sums of four vectors: in each quarter q = (0+1)+(2+3), then (q0+q2) + (q1+q3).
  static COTERIE_INLINE Four reduce_four(Vec a, Vec b, Vec c, Vec d) {
    const Vec quarters = add_pairs(add_pairs(a, b), add_pairs(c, d));
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  }
};

/// Eight lanes of fp64.
struct WideAvx512 {
  using Scalar = double;
  using Element = double;
  using Vec = __m512d;
  using Operand = Vec;
  static constexpr bool kPairs = false;
  static constexpr i64 kLanes = 8;
  static constexpr int kOuterRows = 8;
  static constexpr int kOuterVectors = 3;
  static constexpr i64 kOuterDepth = 128;

  static COTERIE_INLINE Vec zero() { return _mm512_setzero_pd(); }
  static COTERIE_INLINE Vec load(const double* p) { return _mm512_loadu_pd(p); }
  static COTERIE_INLINE void store(double* p, Vec v) { _mm512_storeu_pd(p, v); }
  static COTERIE_INLINE Vec broadcast(double v) { return _mm512_set1_pd(v); }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm512_fmadd_pd(a, b, sum);
  }
};

}  // namespace
}  // namespace coterie::kernels
