// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

double dot(const ConstMatrixView& x, std::int64_t x_row, const ConstMatrixView& w,
           std::int64_t w_row) {
  double sum = 0.0;
  for (std::int64_t k = 0; k < x.columns; ++k) {
    sum += static_cast<double>(load_element(x, x_row, k)) *
           static_cast<double>(load_element(w, w_row, k));
  }
  return sum;
}

void product_row(const GroupedProduct& task, const ConstMatrixView& w, std::int64_t row) {
  const std::int64_t x_row = task.row_of.empty() ? row : task.row_of[static_cast<std::size_t>(row)];
  for (std::int64_t n = 0; n < task.y.columns; ++n) {
    if (x_row < 0) {
      store_element(task.y, row, n, 0.0F);
      continue;
    }
    double value = dot(task.x, x_row, w, n);
    if (task.gated) {
      value = value / (1.0 + std::exp(-value)) * dot(task.x, x_row, w, n + task.y.columns);
    }
    store_element(task.y, row, n, static_cast<float>(value));
  }
}

}  // namespace

void grouped_product_reference(const GroupedProduct& task, Threads& threads) {
  for (std::size_t expert = 0; expert + 1 < task.offsets.size(); ++expert) {
    const std::int64_t first = task.offsets[expert];
    threads.run_ranges(task.offsets[expert + 1] - first, 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t r = begin; r < end; ++r) {
                           product_row(task, task.w[expert], first + r);
                         }
                         count_product(Backend::kReference);
                       });
  }
}

}  // namespace coterie::kernels
