// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room, for files compiled with AVX-512 flags only.

#include <immintrin.h>

#include "coterie/run/kernels/product_loops.hpp"

namespace coterie::kernels {
namespace {

/// Sixteen lanes. 6 x 4 accumulators, 4 weights and a row take 29 of the 32 registers.
struct Avx512 {
  using Vec = __m512;
  typedef std::int32_t Int __attribute__((vector_size(64)));
  static constexpr i64 kLanes = 16;
  static constexpr int kTileRows = 6;
  static constexpr int kTileColumns = 4;
  static constexpr int kColumnsOfOneRow = 8;
  static constexpr int kColumnsOfTwoRows = 6;
  static constexpr i64 kSegment = 48;
  static constexpr i64 kChunkRows = 72;
  static constexpr i64 kBlockSteps = 16;
  static constexpr i64 kGroupTiles = 3;
  static constexpr i64 kPackRows = 16;

  static COTERIE_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static COTERIE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static COTERIE_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static COTERIE_INLINE Vec load_bf16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm512_fmadd_ps(a, b, sum);
  }

  /// Lane l + lane l + 8 of one vector.
  static COTERIE_INLINE __m256 fold(const float* lanes) {
    return _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
  }
  static COTERIE_INLINE __m256 add_pairs(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  }
  /// The sums of eight vectors, folded first.
  static COTERIE_INLINE __m256 reduce_eight(const float* lanes) {
    const __m256 low = add_pairs(add_pairs(fold(lanes), fold(lanes + 16)),
                                 add_pairs(fold(lanes + 32), fold(lanes + 48)));
    const __m256 high = add_pairs(add_pairs(fold(lanes + 64), fold(lanes + 80)),
                                  add_pairs(fold(lanes + 96), fold(lanes + 112)));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                         _mm256_permute2f128_ps(low, high, 0x31));
  }
  /// The sum of each of sixteen vectors.
  static COTERIE_INLINE Vec reduce(const float* lanes) {
    alignas(64) float sums[16];
    _mm256_store_ps(sums, reduce_eight(lanes));
    _mm256_store_ps(sums + 8, reduce_eight(lanes + 128));
    return _mm512_load_ps(sums);
  }
};

}  // namespace
}  // namespace coterie::kernels
