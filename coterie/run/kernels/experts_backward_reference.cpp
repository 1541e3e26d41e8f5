// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/activation_math.hpp"
#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product_counts.hpp"

namespace coterie::kernels {
namespace {

/// Sum over k of g[row][k] w[k][column].
double column_dot(const ConstMatrixView& g, std::int64_t row, const ConstMatrixView& w,
                  std::int64_t column) {
  double sum = 0.0;
  for (std::int64_t k = 0; k < w.rows; ++k) {
    sum += load_element(g, row, k) * load_element(w, k, column);
  }
  return sum;
}

void store_if_wanted(const MatrixView& to, std::int64_t row, std::int64_t column, double value) {
  if (to.data != nullptr) {
    store_element(to, row, column, value);
  }
}

void down_backward_row(const GroupedDownBackward& task, std::size_t expert, std::int64_t r) {
  const bool gated = task.activation == Activation::kSwiGlu;
  const ConstMatrixView& down = task.down[expert];
  const std::int64_t row = task.row_of.empty() ? r : task.row_of[static_cast<std::size_t>(r)];
  const double weight = task.weights.data == nullptr ? 1.0 : load_element(task.weights, r, 0);
  double grad_weight = 0.0;
  for (std::int64_t i = 0; i < down.columns; ++i) {
    double d = 0.0;
    ActivationPoint at;
    if (row >= 0) {
      d = column_dot(task.grad_rows, row, down, i);
      at = activation_at(task.activation, load_element(task.pre, r, i),
                         gated ? load_element(task.pre, r, i + down.columns) : 0.0);
    }
    grad_weight += d * at.hidden;
    store_if_wanted(task.hidden, r, i, row < 0 ? 0.0 : weight * at.hidden);
    store_if_wanted(task.grad_pre, r, i, row < 0 ? 0.0 : weight * d * at.by_first);
    if (gated) {
      store_if_wanted(task.grad_pre, r, i + down.columns,
                      row < 0 ? 0.0 : weight * d * at.by_second);
    }
  }
  if (!task.bias.empty() && row >= 0) {
    for (std::int64_t h = 0; h < task.grad_rows.columns; ++h) {
      grad_weight += load_element(task.grad_rows, row, h) * load_element(task.bias[expert], 0, h);
    }
  }
  store_if_wanted(task.grad_weights, r, 0, grad_weight);
}

/// One element's chain, in the type that gradients are summed in.
template <class Sum>
Sum chain(const GroupedWeightGradient& task, std::size_t expert, std::int64_t m, std::int64_t n) {
  const MatrixView& to = task.gradients[expert];
  Sum sum = task.accumulate ? static_cast<Sum>(load_element(to, m, n)) : Sum{0};
  for (std::int64_t r = task.expert_offsets[expert]; r < task.expert_offsets[expert + 1]; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const std::int64_t a_row = task.a_rows.empty() ? r : task.a_rows[at];
    const std::int64_t b_row = task.b_rows.empty() ? r : task.b_rows[at];
    if (a_row >= 0 && b_row >= 0) {
      sum = std::fma(static_cast<Sum>(load_element(task.a, a_row, m)),
                     static_cast<Sum>(load_element(task.b, b_row, n)), sum);
    }
  }
  return sum;
}

}  // namespace

void grouped_down_backward_reference(const GroupedDownBackward& task, Threads& threads) {
  for (std::size_t expert = 0; expert + 1 < task.expert_offsets.size(); ++expert) {
    const std::int64_t first = task.expert_offsets[expert];
    threads.run_ranges(task.expert_offsets[expert + 1] - first, 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t r = begin; r < end; ++r) {
                           down_backward_row(task, expert, first + r);
                         }
                         count_product(Backend::kReference);
                       });
  }
}

void grouped_up_backward_reference(const GroupedUpBackward& task, Threads& threads) {
  for (std::size_t expert = 0; expert + 1 < task.expert_offsets.size(); ++expert) {
    const std::int64_t first = task.expert_offsets[expert];
    threads.run_ranges(task.expert_offsets[expert + 1] - first, 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t r = first + begin; r < first + end; ++r) {
                           for (std::int64_t h = 0; h < task.grad_x_rows.columns; ++h) {
                             store_element(task.grad_x_rows, r, h,
                                           column_dot(task.grad_pre, r, task.gate_up[expert], h));
                           }
                         }
                         count_product(Backend::kReference);
                       });
  }
}

void grouped_weight_gradient_reference(const GroupedWeightGradient& task, Threads& threads) {
  const bool fp64 = task.a.type == DType::kFloat64;
  for (std::size_t expert = 0; expert < task.gradients.size(); ++expert) {
    const MatrixView& to = task.gradients[expert];
    if (to.data == nullptr) {
      continue;
    }
    threads.run_ranges(to.rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        for (std::int64_t n = 0; n < to.columns; ++n) {
          store_element(to, m, n,
                        fp64 ? chain<double>(task, expert, m, n)
                             : static_cast<double>(chain<float>(task, expert, m, n)));
        }
      }
      count_product(Backend::kReference);
    });
  }
}

}  // namespace coterie::kernels
