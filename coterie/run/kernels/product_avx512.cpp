// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/avx512.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

void run_avx512(const ProductBlock& block) {
  count_product(Backend::kAvx512);
  run_fp32<Avx512>(block);
}

}  // namespace

ProductKernels product_kernels_avx512() {
  return {ProductLoops<Fp32Math<Avx512>, float>::scratch_bytes, run_avx512};
}

}  // namespace coterie::kernels
