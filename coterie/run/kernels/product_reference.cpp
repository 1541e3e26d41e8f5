// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/activation_math.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

/// Row `x_row` of x times row `w_row` of the expert's weights, plus its bias.
double dot(const GroupedProduct& task, std::int64_t x_row, std::size_t expert, std::int64_t w_row) {
  double sum = 0.0;
  for (std::int64_t k = 0; k < task.x.columns; ++k) {
    sum += load_element(task.x, x_row, k) * load_element(task.w[expert], w_row, k);
  }
  return task.bias.empty() ? sum : sum + load_element(task.bias[expert], 0, w_row);
}

double finished(Epilogue epilogue, double first, double second) {
  switch (epilogue) {
    case Epilogue::kSwiGlu: return activation_at(Activation::kSwiGlu, first, second).hidden;
    case Epilogue::kGelu: return activation_at(Activation::kGelu, first, second).hidden;
    case Epilogue::kGeluTanh: return activation_at(Activation::kGeluTanh, first, second).hidden;
    case Epilogue::kNone: break;
  }
  return first;
}

void product_row(const GroupedProduct& task, std::size_t expert, std::int64_t row) {
  const std::int64_t x_row = task.row_of.empty() ? row : task.row_of[static_cast<std::size_t>(row)];
  const bool gated = task.epilogue == Epilogue::kSwiGlu;
  for (std::int64_t n = 0; n < task.y.columns; ++n) {
    double first = 0.0;
    double second = 0.0;
    if (x_row >= 0) {
      first = dot(task, x_row, expert, n);
      second = gated ? dot(task, x_row, expert, n + task.y.columns) : 0.0;
    }
    store_element(task.y, row, n, x_row < 0 ? 0.0 : finished(task.epilogue, first, second));
    if (task.pre.data != nullptr) {
      store_element(task.pre, row, n, first);
      if (gated) {
        store_element(task.pre, row, n + task.y.columns, second);
      }
    }
  }
}

}  // namespace

void grouped_product_reference(const GroupedProduct& task, Threads& threads) {
  for (std::size_t expert = 0; expert + 1 < task.offsets.size(); ++expert) {
    const std::int64_t first = task.offsets[expert];
    threads.run_ranges(task.offsets[expert + 1] - first, 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t r = begin; r < end; ++r) {
                           product_row(task, expert, first + r);
                         }
                         count_product(Backend::kReference);
                       });
  }
}

}  // namespace coterie::kernels
