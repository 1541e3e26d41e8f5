// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/product_cuda.hpp"

namespace coterie::kernels::cuda {
namespace {

/// A matrix of the weights' type with rows that start at multiples of 16 bytes.
void require_rows_of(const char* operation, const char* argument, const ConstMatrixView& view,
                     const ExpertWeights& weights, std::int64_t columns) {
  require_between(operation, join_message("rows of ", argument).c_str(), view.rows, 0, INT32_MAX);
  COTERIE_REQUIRE(view.columns == columns, operation, ": ", argument, " has ", view.columns,
                  " columns, the weights need ", columns);
  COTERIE_REQUIRE(view.type == weights.type, operation, ": ", argument,
                  " must have the type of the weights");
  COTERIE_REQUIRE(view.row_stride >= columns, operation, ": row stride of ", argument, " is ",
                  view.row_stride, ", below its ", columns, " columns");
  if (view.rows > 0) {
    require_pointer(operation, argument, view.data);
    require_aligned(operation, argument, view.data, view.row_stride * size_of(view.type));
  }
}

void require_weights(const char* operation, const char* argument, const ExpertWeights& weights) {
  require_pointer(operation, argument, weights.data);
  require_aligned(operation, argument, weights.data, weights.columns * size_of(weights.type));
  COTERIE_REQUIRE(weights.type != DType::kInt32 && weights.scale == nullptr, operation, ": ",
                  argument, " must be bf16, fp16 or fp32 without scales");
  require_between(operation, join_message("experts of ", argument).c_str(), weights.num_experts, 1,
                  kMaxExperts);
  require_between(operation, join_message("rows of ", argument).c_str(), weights.rows, 8,
                  INT32_MAX);
  require_between(operation, join_message("columns of ", argument).c_str(), weights.columns, 8,
                  INT32_MAX / 2);
}

void run(const GroupedProduct& task, const ProductOptions& options, Stream stream) {
  if (task.max_rows == 0) {
    return;
  }
  if (resolve_path(options.path, task.type) == Path::kHopper) {
    grouped_product_hopper(task, options, stream);
  } else {
    grouped_product_generic(task, stream);
  }
}

constexpr std::size_t align(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// Where the parts of expert_layer's workspace begin.
struct Parts {
  std::size_t offsets = 0;
  std::size_t row_token = 0;
  std::size_t pos_of = 0;
  std::size_t reindex = 0;
  std::size_t hidden = 0;
  std::size_t rows = 0;
  std::size_t total = 0;
};

Parts parts_of(std::int64_t num_tokens, int top_k, int num_experts, std::int64_t hidden,
               std::int64_t intermediate) {
  const auto pairs = static_cast<std::size_t>(num_tokens * top_k);
  Parts parts;
  parts.row_token = parts.offsets + align(static_cast<std::size_t>(num_experts + 1) * 4);
  parts.pos_of = parts.row_token + align(pairs * 4);
  parts.reindex = parts.pos_of + align(pairs * 4);
  parts.hidden = parts.reindex + align(reindex_workspace_bytes(num_tokens, top_k, num_experts));
  parts.rows = parts.hidden + align(pairs * static_cast<std::size_t>(intermediate) * 2);
  parts.total = parts.rows + align(pairs * static_cast<std::size_t>(hidden) * 2);
  return parts;
}

}  // namespace

Path resolve_path(Path path, DType type) {
  const bool can = current_device().major == 9 && type == DType::kBfloat16;
  if (path == Path::kAutomatic) {
    return can ? Path::kHopper : Path::kGeneric;
  }
  if (path == Path::kHopper && !can) {
    fail(ErrorCode::kUnsupported,
         "grouped product: the Hopper kernel needs bf16 and compute capability 9.0; this GPU has ",
         current_device().major, ".x");
  }
  return path;
}

void grouped_up(const GroupedUp& task, const ProductOptions& options, Stream stream) {
  const char* const what = "grouped_up";
  require_weights(what, "gate_up", task.gate_up);
  COTERIE_REQUIRE(task.gate_up.rows % 16 == 0, what, ": gate_up has ", task.gate_up.rows,
                  " rows, not a multiple of 16");
  require_rows_of(what, "x", task.x, task.gate_up, task.gate_up.columns);
  require_rows_of(what, "hidden", task.hidden, task.gate_up, task.gate_up.rows / 2);
  require_pointer(what, "row_token", task.row_token);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  GroupedProduct product;
  product.x = task.x.data;
  product.x_rows = task.x.rows;
  product.x_stride = task.x.row_stride;
  product.row_of = task.row_token;
  product.offsets = task.expert_offsets;
  product.num_experts = task.gate_up.num_experts;
  product.max_rows = task.hidden.rows;
  product.depth = task.gate_up.columns;
  product.columns = task.gate_up.rows / 2;
  product.weights = task.gate_up.data;
  product.y = task.hidden.data;
  product.y_stride = task.hidden.row_stride;
  if (task.pre.data != nullptr) {
    require_rows_of(what, "pre", task.pre, task.gate_up, task.gate_up.rows);
    COTERIE_REQUIRE(task.pre.rows >= task.hidden.rows, what, ": pre has ", task.pre.rows,
                    " rows, hidden has ", task.hidden.rows);
    product.pre = task.pre.data;
    product.pre_stride = task.pre.row_stride;
  }
  product.type = task.gate_up.type;
  product.gated = true;
  run(product, options, stream);
}

namespace {

void run_down(const GroupedDown& task, const ProductOptions& options, bool offsets_are_old,
              Stream stream) {
  const char* const what = "grouped_down";
  require_weights(what, "down", task.down);
  COTERIE_REQUIRE(task.down.rows % 8 == 0, what, ": down has ", task.down.rows,
                  " rows, not a multiple of 8");
  require_rows_of(what, "hidden", task.hidden, task.down, task.down.columns);
  require_rows_of(what, "rows", task.rows, task.down, task.down.rows);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  COTERIE_REQUIRE(task.rows.rows >= task.hidden.rows, what, ": rows has ", task.rows.rows,
                  " rows, hidden has ", task.hidden.rows);
  GroupedProduct product;
  product.x = task.hidden.data;
  product.x_rows = task.hidden.rows;
  product.x_stride = task.hidden.row_stride;
  product.offsets = task.expert_offsets;
  product.num_experts = task.down.num_experts;
  product.max_rows = task.hidden.rows;
  product.depth = task.down.columns;
  product.columns = task.down.rows;
  product.weights = task.down.data;
  product.y = task.rows.data;
  product.y_stride = task.rows.row_stride;
  product.type = task.down.type;
  product.offsets_are_old = offsets_are_old;
  run(product, options, stream);
}

}  // namespace

void grouped_down(const GroupedDown& task, const ProductOptions& options, Stream stream) {
  run_down(task, options, false, stream);
}

std::size_t expert_layer_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts,
                                         std::int64_t hidden, std::int64_t intermediate) {
  return parts_of(num_tokens, top_k, num_experts, hidden, intermediate).total;
}

void expert_layer(const ExpertLayer& task, const ProductOptions& options, Stream stream) {
  const char* const what = "expert_layer";
  require_between(what, "top_k", task.top_k, 1, kMaxTopK);
  require_weights(what, "gate_up", task.gate_up);
  const std::int64_t num_tokens = task.x.rows;
  const std::int64_t hidden = task.gate_up.columns;
  const std::int64_t intermediate = task.gate_up.rows / 2;
  COTERIE_REQUIRE(task.down.num_experts == task.gate_up.num_experts, what, ": gate_up has ",
                  task.gate_up.num_experts, " experts, down has ", task.down.num_experts);
  COTERIE_REQUIRE(task.y.rows == num_tokens, what, ": x has ", num_tokens, " rows, y has ",
                  task.y.rows);
  const auto num_experts = static_cast<int>(task.gate_up.num_experts);
  const Parts parts = parts_of(num_tokens, task.top_k, num_experts, hidden, intermediate);
  require_pointer(what, "workspace", task.workspace);
  COTERIE_REQUIRE(task.workspace_bytes >= parts.total, what, ": workspace has ",
                  task.workspace_bytes, " bytes, needs ", parts.total);
  auto* const base = static_cast<std::byte*>(task.workspace);
  const auto ints = [&](std::size_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  const ReindexLists lists{ints(parts.offsets), ints(parts.row_token), ints(parts.pos_of)};
  const std::int64_t num_pairs = num_tokens * task.top_k;
  build_reindex(
      {task.ids, num_tokens, task.top_k, num_experts, lists, base + parts.reindex, task.faults},
      stream);
  COTERIE_REQUIRE(task.gate_up.type == DType::kBfloat16, what, ": weights must be bf16");
  const MatrixView inner{base + parts.hidden, num_pairs, intermediate, intermediate,
                         DType::kBfloat16};
  const MatrixView rows{base + parts.rows, num_pairs, hidden, hidden, DType::kBfloat16};
  grouped_up({task.x, lists.row_token, lists.expert_offsets, task.gate_up, inner, task.pre},
             options, stream);
  run_down({inner, lists.expert_offsets, task.down, rows}, options, true, stream);
  merge_rows({rows, lists.pos_of, task.weights, task.top_k, task.y}, stream);
}

}  // namespace coterie::kernels::cuda
