// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/linear.hpp"

#include <array>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {

void linear(const ConstMatrixView& x, const ConstMatrixView& w, const MatrixView& y,
            const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("linear", "x", x);
  require_matrix("linear", "w", w);
  require_matrix("linear", "y", y);
  require_precision("linear", "w", w, x.type == DType::kFloat64);
  require_precision("linear", "y", y, x.type == DType::kFloat64);
  require_equal("linear", "number of columns of w", w.columns, "number of columns of x", x.columns);
  require_equal("linear", "number of rows of y", y.rows, "number of rows of x", x.rows);
  require_equal("linear", "number of columns of y", y.columns, "number of rows of w", w.rows);
  const std::array<std::int64_t, 2> offsets = {0, x.rows};
  GroupedProduct task;
  task.x = x;
  task.offsets = offsets;
  task.w = {&w, 1};
  task.y = y;
  grouped_product(task, backend, execution.pool());
}

namespace {

constexpr const char* kBackward = "linear_backward";

void require_output(const LinearBackward& task, const char* name, const MatrixView& view,
                    const ConstMatrixView& like) {
  if (view.data != nullptr) {
    require_matrix(kBackward, name, view);
    require_shape(kBackward, name, view, like.rows, like.columns);
    require_precision(kBackward, name, view, task.x.type == DType::kFloat64);
  }
}

void require_linear_backward(const LinearBackward& task) {
  require_matrix(kBackward, "x", task.x);
  require_matrix(kBackward, "w", task.w);
  require_matrix(kBackward, "grad_y", task.grad_y);
  require_equal(kBackward, "number of columns of w", task.w.columns, "number of columns of x",
                task.x.columns);
  require_shape(kBackward, "grad_y", task.grad_y, task.x.rows, task.w.rows);
  require_precision(kBackward, "w", task.w, task.x.type == DType::kFloat64);
  require_precision(kBackward, "grad_y", task.grad_y, task.x.type == DType::kFloat64);
  require_output(task, "grad_x", task.grad_x, task.x);
  require_output(task, "grad_w", task.grad_w, task.w);
  require_output(task, "grad_bias", task.grad_bias, {nullptr, 1, task.w.rows, 0, task.w.type});
  for (const MatrixView* view : {&task.grad_w, &task.grad_bias}) {
    COTERIE_REQUIRE(!task.accumulate || view->data == nullptr || view->type != DType::kBfloat16,
                    kBackward, ": ", view == &task.grad_w ? "grad_w" : "grad_bias",
                    " is bfloat16; accumulating needs float32 or float64");
  }
}

}  // namespace

void linear_backward(const LinearBackward& task, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_linear_backward(task);
  const std::array<std::int64_t, 2> offsets = {0, task.x.rows};
  if (task.grad_x.data != nullptr) {
    run_up_backward({task.grad_y, offsets, {&task.w, 1}, task.grad_x}, backend, execution.pool());
  }
  if (task.grad_w.data != nullptr) {
    run_weight_gradient({task.grad_y, {}, task.x, {}, offsets, {&task.grad_w, 1}, task.accumulate},
                        backend, execution.pool());
  }
  if (task.grad_bias.data != nullptr) {
    run_bias_gradient({task.grad_y, {}, {}, offsets, {&task.grad_bias, 1}, task.accumulate},
                      backend, execution.pool());
  }
}

}  // namespace coterie::kernels
