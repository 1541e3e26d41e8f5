// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/kernels/product_block.hpp"

namespace coterie::kernels {

ProductKernels kernels_of(Backend backend) {
  switch (backend) {
#if defined(__x86_64__)
    case Backend::kAvx2: return product_kernels_avx2();
    case Backend::kAvx512: return product_kernels_avx512();
    case Backend::kAvx512Bf16: return product_kernels_avx512_bf16();
#endif
    case Backend::kGeneric: return product_kernels_generic();
    default: break;
  }
  COTERIE_CHECK(false, "back end ", name_of(backend), " has no vector kernels");
}

}  // namespace coterie::kernels
