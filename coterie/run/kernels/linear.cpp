// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/linear.hpp"

#include <array>

#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {

void linear(const ConstMatrixView& x, const ConstMatrixView& w, const MatrixView& y,
            const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("linear", "x", x);
  require_matrix("linear", "w", w);
  require_matrix("linear", "y", y);
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

}  // namespace coterie::kernels
