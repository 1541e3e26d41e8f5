// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/avx512.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

void run_avx512(const ProductBlock& block) {
  count_product(Backend::kAvx512);
  run_fp32<Avx512>(block);
}

template <class V>
void outer_avx512(const OuterBlock& block) {
  count_product(Backend::kAvx512);
  run_outer<V>(block);
}

}  // namespace

ProductKernels product_kernels_avx512() {
  return {ProductLoops<Fp32Math<Avx512>, float>::scratch_bytes, run_avx512, outer_avx512<Avx512>,
          outer_avx512<WideAvx512>, down_backward_row<Avx512>};
}

}  // namespace coterie::kernels
