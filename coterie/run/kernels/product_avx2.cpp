// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "coterie/run/kernels/outer_loops.hpp"
#include "coterie/run/kernels/product_counts.hpp"
#include "coterie/run/kernels/product_loops.hpp"

namespace coterie::kernels {
namespace {

/// Eight lanes. 3 x 4 accumulators, 3 rows and a weight fill the 16 registers.
struct Avx2 {
  using Scalar = float;
  using Element = float;
  using Vec = __m256;
  using Operand = Vec;
  static constexpr bool kPairs = false;
  using Four = __m128;
  typedef std::int32_t Int __attribute__((vector_size(32)));
  static constexpr i64 kLanes = 8;
  static constexpr int kTileRows = 3;
  static constexpr int kTileColumns = 4;
  static constexpr int kColumnsOfOneRow = 8;
  static constexpr int kColumnsOfTwoRows = 4;
  static constexpr i64 kSegment = 96;
  static constexpr i64 kPanelTiles = 12;
  static constexpr i64 kChunkRows = 64;
  static constexpr i64 kBlockSteps = 64;
  static constexpr i64 kGroupTiles = 2;
  static constexpr int kOuterRows = 6;
  static constexpr int kOuterVectors = 2;
  static constexpr i64 kOuterDepth = 256;
  static constexpr i64 kManyRows = 20;

  static COTERIE_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static COTERIE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static COTERIE_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static COTERIE_INLINE Vec load_bf16(const std::uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static COTERIE_INLINE Vec broadcast(float v) { return _mm256_set1_ps(v); }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm256_fmadd_ps(a, b, sum);
  }

  /// Lanes 2i and 2i + 1 of a beside those of b, each pair added.
  static COTERIE_INLINE Vec add_pairs(Vec a, Vec b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  }
  /// The sums of four vectors, each ((0+1)+(2+3)) + ((4+5)+(6+7)).
  static COTERIE_INLINE Four reduce_four(Vec a, Vec b, Vec c, Vec d) {
    const Vec halves = add_pairs(add_pairs(a, b), add_pairs(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  }
};

/// Four lanes of fp64.
struct WideAvx2 {
  using Scalar = double;
  using Element = double;
  using Vec = __m256d;
  using Operand = Vec;
  static constexpr bool kPairs = false;
  static constexpr i64 kLanes = 4;
  static constexpr int kOuterRows = 6;
  static constexpr int kOuterVectors = 2;
  static constexpr i64 kOuterDepth = 128;

  static COTERIE_INLINE Vec zero() { return _mm256_setzero_pd(); }
  static COTERIE_INLINE Vec load(const double* p) { return _mm256_loadu_pd(p); }
  static COTERIE_INLINE void store(double* p, Vec v) { _mm256_storeu_pd(p, v); }
  static COTERIE_INLINE Vec broadcast(double v) { return _mm256_set1_pd(v); }
  static COTERIE_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm256_fmadd_pd(a, b, sum);
  }
};

void run_avx2(const ProductBlock& block) {
  count_product(Backend::kAvx2);
  run_fp32<Avx2>(block);
}

template <class V>
void outer_avx2(const OuterBlock& block) {
  count_product(Backend::kAvx2);
  run_outer<V>(block);
}

}  // namespace

ProductKernels product_kernels_avx2() {
  return {ProductLoops<Fp32Math<Avx2>, float>::scratch_bytes, run_avx2, outer_avx2<Avx2>,
          outer_avx2<WideAvx2>, down_backward_row<Avx2>};
}

}  // namespace coterie::kernels
