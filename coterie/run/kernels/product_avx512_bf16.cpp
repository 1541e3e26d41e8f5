// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/avx512.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

/// bf16 products by vdpbf16ps: lane l adds the pairs k = 2l, 2l + 1 of each 32 elements, the odd
/// one first. The instruction rounds to nearest even and takes denormals as zero.
struct Bf16Math {
  using Isa = Avx512;
  using Element = std::uint16_t;
  using Operand = __m512i;
  static constexpr i64 kStep = 32;

  static COTERIE_INLINE Operand load(const std::uint16_t* p) { return _mm512_loadu_si512(p); }
  static COTERIE_INLINE void store(std::uint16_t* p, Operand v) { _mm512_storeu_si512(p, v); }
  static COTERIE_INLINE __m512 step(Operand a, Operand b, __m512 sum) {
    __m512bh x;
    __m512bh w;
    std::memcpy(&x, &a, sizeof(x));
    std::memcpy(&w, &b, sizeof(w));
    return _mm512_dpbf16_ps(sum, x, w);
  }
};

/// Outer products of bf16, two k at a time: of a pair the instruction takes the high half first, as
/// a multiply-add of its own, so the chain is that of one k after the other (denormals taken as
/// zero).
struct Bf16Pairs {
  using Scalar = float;
  using Element = std::uint32_t;
  using Vec = __m512;
  using Operand = __m512i;
  static constexpr bool kPairs = true;
  static constexpr i64 kLanes = 16;
  static constexpr int kOuterRows = 8;
  static constexpr int kOuterVectors = 3;
  static constexpr i64 kOuterDepth = 128;

  static COTERIE_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static COTERIE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static COTERIE_INLINE Operand load(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  static COTERIE_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static COTERIE_INLINE void store(std::uint32_t* p, Operand v) { _mm512_storeu_si512(p, v); }
  static COTERIE_INLINE Operand broadcast(std::uint32_t v) {
    return _mm512_set1_epi32(static_cast<int>(v));
  }
  static COTERIE_INLINE Vec multiply_add(Operand a, Operand b, Vec sum) {
    return Bf16Math::step(a, b, sum);
  }
  /// Sixteen columns of an even k and of the odd k after it (null: zeros).
  static COTERIE_INLINE Operand pairs(const std::uint16_t* even, const std::uint16_t* odd) {
    const Operand high = _mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even))), 16);
    if (odd == nullptr) {
      return high;
    }
    return _mm512_or_si512(
        high, _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd))));
  }
};

void run_avx512_bf16(const ProductBlock& block) {
  count_product(Backend::kAvx512Bf16);
  if (block.x_type == DType::kBfloat16 && block.w_type == DType::kBfloat16) {
    ProductLoops<Bf16Math, std::uint16_t>(block).run();
  } else {
    run_fp32<Avx512>(block);
  }
}

std::int64_t scratch_bytes(std::int64_t depth) {
  const std::int64_t fp32 = ProductLoops<Fp32Math<Avx512>, float>::scratch_bytes(depth);
  const std::int64_t bf16 = ProductLoops<Bf16Math, std::uint16_t>::scratch_bytes(depth);
  return fp32 > bf16 ? fp32 : bf16;
}

void outer_avx512_bf16(const OuterBlock& block) {
  count_product(Backend::kAvx512Bf16);
  if (block.a.type == DType::kFloat64) {
    run_outer<WideAvx512>(block);
  } else if (block.a.type == DType::kBfloat16 && block.b.type == DType::kBfloat16) {
    run_outer<Bf16Pairs>(block);
  } else {
    run_outer<Avx512>(block);
  }
}

}  // namespace

ProductKernels product_kernels_avx512_bf16() {
  return {scratch_bytes, run_avx512_bf16, outer_avx512_bf16, outer_avx512_bf16,
          down_backward_row<Avx512>};
}

}  // namespace coterie::kernels
