// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/experts.hpp"

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {
namespace {

Epilogue epilogue_of(Activation activation) {
  switch (activation) {
    case Activation::kSwiGlu: return Epilogue::kSwiGlu;
    case Activation::kGelu: return Epilogue::kGelu;
    case Activation::kGeluTanh: return Epilogue::kGeluTanh;
  }
  fail(ErrorCode::kBadInput, "grouped_up: unknown activation ", static_cast<int>(activation));
}

}  // namespace

void grouped_up(const GroupedUp& up, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  const Epilogue epilogue = epilogue_of(up.activation);
  const bool fp64 = up.x.type == DType::kFloat64;
  const std::int64_t width = up.hidden.columns * pre_activations_per_hidden(up.activation);
  require_matrix("grouped_up", "x", up.x);
  require_matrix("grouped_up", "hidden", up.hidden);
  require_precision("grouped_up", "hidden", up.hidden, fp64);
  if (up.row_of.empty() && up.hidden.rows != 0) {
    require_equal("grouped_up", "number of rows of hidden", up.hidden.rows,
                  "number of rows of x (row_of is empty)", up.x.rows);
  } else {
    require_equal("grouped_up", "length of row_of", static_cast<std::int64_t>(up.row_of.size()),
                  "number of rows of hidden", up.hidden.rows);
    require_rows("grouped_up", "row_of", up.row_of, up.x.rows);
  }
  require_offsets("grouped_up", "expert_offsets", up.expert_offsets, up.hidden.rows);
  require_expert_matrices({"grouped_up", "gate_up", up.gate_up, up.expert_offsets}, width,
                          up.x.columns, up.x.type);
  if (!up.bias.empty()) {
    require_expert_matrices({"grouped_up", "bias", up.bias, up.expert_offsets}, 1, width,
                            up.x.type);
  }
  if (up.pre.data != nullptr) {
    require_matrix("grouped_up", "pre", up.pre);
    require_shape("grouped_up", "pre", up.pre, up.hidden.rows, width);
    require_precision("grouped_up", "pre", up.pre, fp64);
  }
  grouped_product(
      {up.x, up.row_of, up.expert_offsets, up.gate_up, up.hidden, epilogue, up.bias, up.pre},
      backend, execution.pool());
}

void grouped_down(const GroupedDown& down, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("grouped_down", "hidden", down.hidden);
  require_matrix("grouped_down", "rows", down.rows);
  require_precision("grouped_down", "rows", down.rows, down.hidden.type == DType::kFloat64);
  require_equal("grouped_down", "number of rows of rows", down.rows.rows,
                "number of rows of hidden", down.hidden.rows);
  require_offsets("grouped_down", "expert_offsets", down.expert_offsets, down.hidden.rows);
  require_expert_matrices({"grouped_down", "down", down.down, down.expert_offsets},
                          down.rows.columns, down.hidden.columns, down.hidden.type);
  if (!down.bias.empty()) {
    require_expert_matrices({"grouped_down", "bias", down.bias, down.expert_offsets}, 1,
                            down.rows.columns, down.hidden.type);
  }
  grouped_product(
      {down.hidden, {}, down.expert_offsets, down.down, down.rows, Epilogue::kNone, down.bias, {}},
      backend, execution.pool());
}

}  // namespace coterie::kernels
