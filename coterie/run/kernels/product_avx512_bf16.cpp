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

template <class V>
void outer_avx512_bf16(const OuterBlock& block) {
  count_product(Backend::kAvx512Bf16);
  run_outer<V>(block);
}

}  // namespace

ProductKernels product_kernels_avx512_bf16() {
  return {scratch_bytes, run_avx512_bf16, outer_avx512_bf16<Avx512>, outer_avx512_bf16<WideAvx512>,
          down_backward_row<Avx512>};
}

}  // namespace coterie::kernels
