// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/product.hpp"

#include <array>
#include <atomic>

#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {
std::array<std::atomic<std::uint64_t>, 6> counts;
}

void count_product(Backend backend) noexcept {
  counts[static_cast<std::size_t>(backend)].fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t num_products_run(Backend backend) noexcept {
  return counts[static_cast<std::size_t>(backend)].load(std::memory_order_relaxed);
}

void grouped_product(const GroupedProduct& task, Backend backend, Threads& threads) {
  if (backend == Backend::kReference) {
    grouped_product_reference(task, threads);
  } else if (task.x.type == DType::kFloat64) {
    grouped_product_fp64(task, backend, threads);
  } else {
    grouped_product_cpu(task, backend, threads);
  }
}

}  // namespace coterie::kernels
