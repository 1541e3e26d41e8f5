// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "coterie/run/kernels/product_counts.hpp"
#include "coterie/run/kernels/product_loops.hpp"

namespace coterie::kernels {
namespace {

/// Eight lanes. 4 x 3 accumulators, 3 weights and a row fill the 16 registers.
struct Avx2 {
  using Vec = __m256;
  typedef std::int32_t Int __attribute__((vector_size(32)));
  static constexpr i64 kLanes = 8;
  static constexpr int kTileRows = 4;
  static constexpr int kTileColumns = 3;
  static constexpr int kColumnsOfOneRow = 4;
  static constexpr int kColumnsOfTwoRows = 6;
  static constexpr i64 kSegment = 24;
  static constexpr i64 kChunkRows = 64;
  static constexpr i64 kBlockSteps = 32;
  static constexpr i64 kGroupTiles = 4;
  static constexpr i64 kPackRows = 16;

  static COTERIE_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static COTERIE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static COTERIE_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static COTERIE_INLINE Vec load_bf16(const std::uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm256_fmadd_ps(a, b, sum);
  }

  /// Lanes 2i and 2i + 1 of a beside those of b, each pair added.
  static COTERIE_INLINE Vec add_pairs(Vec a, Vec b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  }
  /// The sum of each of eight vectors: ((0+1)+(2+3)) + ((4+5)+(6+7)).
  static COTERIE_INLINE Vec reduce(const float* lanes) {
    const Vec low = add_pairs(add_pairs(load(lanes), load(lanes + 8)),
                              add_pairs(load(lanes + 16), load(lanes + 24)));
    const Vec high = add_pairs(add_pairs(load(lanes + 32), load(lanes + 40)),
                               add_pairs(load(lanes + 48), load(lanes + 56)));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                         _mm256_permute2f128_ps(low, high, 0x31));
  }
};

void run_avx2(const ProductBlock& block) {
  count_product(Backend::kAvx2);
  run_fp32<Avx2>(block);
}

}  // namespace

ProductKernels product_kernels_avx2() {
  return {ProductLoops<Fp32Math<Avx2>, float>::scratch_bytes, run_avx2};
}

}  // namespace coterie::kernels
