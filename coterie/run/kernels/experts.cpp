// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/experts.hpp"

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {
namespace {

/// The weights of all experts that have rows must be [rows_wanted, columns_wanted].
void require_weights(const char* operation, const char* argument, const GroupedProduct& task,
                     std::int64_t rows_wanted) {
  require_equal(operation, "number of experts in the weights",
                static_cast<std::int64_t>(task.w.size()), "expert_offsets' number of experts",
                static_cast<std::int64_t>(task.offsets.size()) - 1);
  for (std::size_t expert = 0; expert < task.w.size(); ++expert) {
    const ConstMatrixView& w = task.w[expert];
    if (task.offsets[expert + 1] == task.offsets[expert]) {
      continue;
    }
    COTERIE_REQUIRE(w.rows == rows_wanted && w.columns == task.x.columns, operation, ": ", argument,
                    "[", expert, "] has shape [", w.rows, ", ", w.columns, "]; expected [",
                    rows_wanted, ", ", task.x.columns, "]");
    require_matrix(operation, argument, w);
  }
}

}  // namespace

void grouped_up(const GroupedUp& up, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("grouped_up", "x", up.x);
  require_matrix("grouped_up", "hidden", up.hidden);
  COTERIE_REQUIRE(up.activation == Activation::kSwiGlu, "grouped_up: unknown activation ",
                  static_cast<int>(up.activation));
  if (up.row_of.empty()) {
    require_equal("grouped_up", "number of rows of hidden", up.hidden.rows,
                  "number of rows of x (row_of is empty)", up.x.rows);
  } else {
    require_equal("grouped_up", "length of row_of", static_cast<std::int64_t>(up.row_of.size()),
                  "number of rows of hidden", up.hidden.rows);
    require_rows("grouped_up", "row_of", up.row_of, up.x.rows);
  }
  require_offsets("grouped_up", "expert_offsets", up.expert_offsets, up.hidden.rows);
  GroupedProduct task;
  task.x = up.x;
  task.row_of = up.row_of;
  task.offsets = up.expert_offsets;
  task.w = up.gate_up;
  task.y = up.hidden;
  task.gated = true;
  require_weights("grouped_up", "gate_up", task, 2 * up.hidden.columns);
  grouped_product(task, backend, execution.pool());
}

void grouped_down(const GroupedDown& down, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("grouped_down", "hidden", down.hidden);
  require_matrix("grouped_down", "rows", down.rows);
  require_equal("grouped_down", "number of rows of rows", down.rows.rows,
                "number of rows of hidden", down.hidden.rows);
  require_offsets("grouped_down", "expert_offsets", down.expert_offsets, down.hidden.rows);
  GroupedProduct task;
  task.x = down.hidden;
  task.offsets = down.expert_offsets;
  task.w = down.down;
  task.y = down.rows;
  require_weights("grouped_down", "down", task, down.rows.columns);
  grouped_product(task, backend, execution.pool());
}

}  // namespace coterie::kernels
