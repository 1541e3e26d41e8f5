// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {

void grouped_product_cpu(const GroupedProduct& task, Backend /*backend*/, Threads& threads) {
  grouped_product_reference(task, threads);
}

}  // namespace coterie::kernels
