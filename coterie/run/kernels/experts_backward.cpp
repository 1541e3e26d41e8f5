// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/experts_backward.hpp"

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/checks.hpp"

namespace coterie::kernels {
namespace {

constexpr const char* kDown = "grouped_down_backward";
constexpr const char* kUp = "grouped_up_backward";

void require_outputs(const GroupedDownBackward& task, std::int64_t num_rows, std::int64_t width) {
  const bool fp64 = task.grad_rows.type == DType::kFloat64;
  const auto check = [&](const char* name, const MatrixView& view, std::int64_t columns) {
    if (view.data != nullptr) {
      require_matrix(kDown, name, view);
      require_shape(kDown, name, view, num_rows, columns);
      require_precision(kDown, name, view, fp64);
    }
  };
  check("grad_pre", task.grad_pre, width * pre_activations_per_hidden(task.activation));
  check("hidden", task.hidden, width);
  if (task.grad_weights.data != nullptr) {
    require_column(kDown, "grad_weights", task.grad_weights, num_rows, fp64);
  }
}

void require_inputs(const GroupedDownBackward& task, std::int64_t num_rows) {
  const bool fp64 = task.grad_rows.type == DType::kFloat64;
  require_matrix(kDown, "grad_rows", task.grad_rows);
  require_matrix(kDown, "pre", task.pre);
  require_precision(kDown, "pre", task.pre, fp64);
  if (task.row_of.empty() && num_rows != 0) {
    require_equal(kDown, "number of rows of grad_rows (row_of is empty)", task.grad_rows.rows,
                  "number of rows of pre", num_rows);
  } else {
    require_equal(kDown, "length of row_of", static_cast<std::int64_t>(task.row_of.size()),
                  "number of rows of pre", num_rows);
    require_rows(kDown, "row_of", task.row_of, task.grad_rows.rows);
  }
  if (task.weights.data != nullptr) {
    require_column(kDown, "weights", task.weights, num_rows, fp64);
  }
}

}  // namespace

void grouped_down_backward(const GroupedDownBackward& task, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  const std::int64_t num_rows = task.pre.rows;
  const std::int64_t parts = pre_activations_per_hidden(task.activation);
  require_inputs(task, num_rows);
  COTERIE_REQUIRE(task.pre.columns % parts == 0, kDown, ": pre has ", task.pre.columns,
                  " columns, an odd number; ", name_of(task.activation), " needs two halves");
  const std::int64_t width = task.pre.columns / parts;
  require_outputs(task, num_rows, width);
  require_offsets(kDown, "expert_offsets", task.expert_offsets, num_rows);
  const ExpertMatrices down{kDown, "down", task.down, task.expert_offsets};
  require_expert_matrices(down, task.grad_rows.columns, width, task.grad_rows.type);
  if (!task.bias.empty()) {
    const ExpertMatrices bias{kDown, "bias", task.bias, task.expert_offsets};
    require_expert_matrices(bias, 1, task.grad_rows.columns, task.grad_rows.type);
  }
  if (backend == Backend::kReference) {
    grouped_down_backward_reference(task, execution.pool());
  } else {
    grouped_down_backward_cpu(task, backend, execution.pool());
  }
}

void grouped_up_backward(const GroupedUpBackward& task, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix(kUp, "grad_pre", task.grad_pre);
  require_matrix(kUp, "grad_x_rows", task.grad_x_rows);
  require_precision(kUp, "grad_x_rows", task.grad_x_rows, task.grad_pre.type == DType::kFloat64);
  require_equal(kUp, "number of rows of grad_x_rows", task.grad_x_rows.rows,
                "number of rows of grad_pre", task.grad_pre.rows);
  require_offsets(kUp, "expert_offsets", task.expert_offsets, task.grad_pre.rows);
  const ExpertMatrices gate_up{kUp, "gate_up", task.gate_up, task.expert_offsets};
  require_expert_matrices(gate_up, task.grad_pre.columns, task.grad_x_rows.columns,
                          task.grad_pre.type);
  run_up_backward(task, backend, execution.pool());
}

void run_up_backward(const GroupedUpBackward& task, Backend backend, Threads& threads) {
  if (backend == Backend::kReference) {
    grouped_up_backward_reference(task, threads);
  } else {
    grouped_up_backward_cpu(task, backend, threads);
  }
}

}  // namespace coterie::kernels
