// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/product_cuda.hpp"
#include "coterie/run/kernels/workspace.hpp"

namespace coterie::kernels::cuda {
namespace {

/// Rows of `columns` elements of one of the allowed types that start at multiples of 16 bytes.
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

void require_weights(const char* operation, const char* argument, const ExpertWeights& weights,
                     std::int64_t multiple) {
  require_pointer(operation, argument, weights.data);
  require_aligned(operation, argument, weights.data, weights.columns * size_of(weights.type));
  if (weights.scale != nullptr ||
      (weights.type != DType::kBfloat16 && weights.type != DType::kFloat16 &&
       weights.type != DType::kFloat32)) {
    fail(ErrorCode::kUnsupported, operation, ": ", argument,
         weights.scale != nullptr ? " comes with scales" : " has another type",
         "; weights must be bf16, fp16 or fp32 without scales (block-scaled fp8 is not built yet)");
  }
  require_between(operation, join_message("experts of ", argument).c_str(), weights.num_experts, 1,
                  kMaxExperts);
  require_between(operation, join_message("rows of ", argument).c_str(), weights.rows, 8,
                  INT32_MAX);
  require_between(operation, join_message("columns of ", argument).c_str(), weights.columns, 8,
                  INT32_MAX / 2);
  COTERIE_REQUIRE(weights.rows % multiple == 0, operation, ": ", argument, " has ", weights.rows,
                  " rows, not a multiple of ", multiple);
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

Parts parts_of(const Reindex& sort, std::int64_t hidden, std::int64_t intermediate, DType type) {
  const auto [num_tokens, top_k, num_experts] =
      std::tuple(sort.num_tokens, sort.top_k, sort.num_experts);
  const auto pairs = static_cast<std::size_t>(num_tokens * top_k);
  const auto size = static_cast<std::size_t>(size_of(type));
  Parts parts;
  parts.row_token = parts.offsets + align(static_cast<std::size_t>(num_experts + 1) * 4);
  parts.pos_of = parts.row_token + align(pairs * 4);
  parts.reindex = parts.pos_of + align(pairs * 4);
  parts.hidden = parts.reindex + align(reindex_workspace_bytes(num_tokens, top_k, num_experts));
  parts.rows = parts.hidden + align(pairs * static_cast<std::size_t>(intermediate) * size);
  parts.total = parts.rows + align(pairs * static_cast<std::size_t>(hidden) * size);
  return parts;
}

}  // namespace

PathChoice choose_path(Path path, DType type) {
  const char* source = "grouped product";
  if (path == Path::kAutomatic) {
    if (const char* wish = std::getenv("COTERIE_GPU_KERNELS"); wish != nullptr && *wish != '\0') {
      source = "COTERIE_GPU_KERNELS";
      path = parse_path(wish, source);
    }
  }
  const DeviceFacts device = current_device();
  const bool is_bf16 = type == DType::kBfloat16;
  const std::string facts = join_message("compute capability ", device.major, ".", device.minor,
                                         is_bf16 ? ", bf16 weights" : ", weights other than bf16");
  const bool can = device.major == 9 && is_bf16;
  if (path == Path::kHopper && !can) {
    fail(ErrorCode::kUnsupported, source,
         ": the Hopper kernels need bf16 weights and compute capability 9.0; here: ", facts);
  }
  if (path == Path::kAutomatic) {
    return {can ? Path::kHopper : Path::kGeneric, facts};
  }
  return {path, join_message("asked for; ", facts)};
}

Path resolve_path(Path path, DType type) {
  return choose_path(path, type).path;
}

void grouped_up(const GroupedUp& task, const ProductOptions& options, Stream stream) {
  const char* const what = "grouped_up";
  const bool gated = task.activation == Activation::kSwiGlu;
  COTERIE_REQUIRE(
      gated || task.activation == Activation::kGelu || task.activation == Activation::kGeluTanh,
      what, ": unknown activation ", static_cast<int>(task.activation));
  COTERIE_REQUIRE(!gated || task.bias == nullptr, what, ": swiglu takes no bias");
  require_weights(what, "gate_up", task.gate_up, gated ? 16 : 8);
  const std::int64_t columns = task.gate_up.rows / pre_activations_per_hidden(task.activation);
  require_rows_of(what, "x", task.x, task.gate_up, task.gate_up.columns);
  require_rows_of(what, "hidden", task.hidden, task.gate_up, columns);
  if (task.pre.data != nullptr) {
    require_rows_of(what, "pre", task.pre, task.gate_up, task.gate_up.rows);
    COTERIE_REQUIRE(task.pre.rows >= task.hidden.rows, what, ": pre has ", task.pre.rows,
                    " rows, hidden has ", task.hidden.rows);
  }
  require_pointer(what, "row_token", task.row_token);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  GroupedProduct product;
  product.x = row_source(what, "x", task.x, task.more_x);
  product.x_rows = task.x.rows;
  product.row_of = task.row_token;
  product.offsets = task.expert_offsets;
  product.num_experts = task.gate_up.num_experts;
  product.max_rows = task.hidden.rows;
  product.depth = task.gate_up.columns;
  product.columns = columns;
  product.weights = task.gate_up.data;
  product.bias = task.bias;
  product.y = task.hidden;
  product.pre = task.pre;
  product.type = task.gate_up.type;
  product.activation = task.activation;
  run(product, options, stream);
}

namespace {

void run_down(const GroupedDown& task, const ProductOptions& options, bool offsets_are_old,
              Stream stream) {
  const char* const what = "grouped_down";
  require_weights(what, "down", task.down, 8);
  require_rows_of(what, "hidden", task.hidden, task.down, task.down.columns);
  ExpertWeights as_rows = task.down;
  as_rows.type = task.rows.type == DType::kFloat32 ? DType::kFloat32 : task.down.type;
  require_rows_of(what, "rows", task.rows, as_rows, task.down.rows);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  COTERIE_REQUIRE(task.rows.rows >= task.hidden.rows, what, ": rows has ", task.rows.rows,
                  " rows, hidden has ", task.hidden.rows);
  GroupedProduct product;
  product.x = row_source(what, "hidden", task.hidden, {});
  product.x_rows = task.hidden.rows;
  product.offsets = task.expert_offsets;
  product.num_experts = task.down.num_experts;
  product.max_rows = task.hidden.rows;
  product.depth = task.down.columns;
  product.columns = task.down.rows;
  product.weights = task.down.data;
  product.bias = task.bias;
  product.y = task.rows;
  product.type = task.down.type;
  product.offsets_are_old = offsets_are_old;
  run(product, options, stream);
}

}  // namespace

void grouped_down(const GroupedDown& task, const ProductOptions& options, Stream stream) {
  run_down(task, options, false, stream);
}

std::size_t expert_layer_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts,
                                         std::int64_t hidden, std::int64_t intermediate,
                                         DType type) {
  return parts_of({nullptr, num_tokens, top_k, num_experts, {}, nullptr, nullptr}, hidden,
                  intermediate, type)
      .total;
}

void expert_layer(const ExpertLayer& task, const ProductOptions& options, Stream stream) {
  const char* const what = "expert_layer";
  require_weights(what, "gate_up", task.gate_up, 8);
  require_between(what, "top_k", task.top_k, 1,
                  std::min(std::int64_t{kMaxTopK}, task.gate_up.num_experts));
  const std::int64_t num_tokens = task.x.rows;
  const std::int64_t hidden = task.gate_up.columns;
  const std::int64_t intermediate = task.gate_up.rows / pre_activations_per_hidden(task.activation);
  const DType type = task.gate_up.type;
  COTERIE_REQUIRE(task.down.num_experts == task.gate_up.num_experts, what, ": gate_up has ",
                  task.gate_up.num_experts, " experts, down has ", task.down.num_experts);
  COTERIE_REQUIRE(task.down.type == type, what, ": gate_up and down differ in type");
  COTERIE_REQUIRE(task.y.rows == num_tokens, what, ": x has ", num_tokens, " rows, y has ",
                  task.y.rows);
  const auto num_experts = static_cast<int>(task.gate_up.num_experts);
  Reindex sort{task.ids, num_tokens, task.top_k, num_experts, {}, nullptr, task.faults};
  const Parts parts = parts_of(sort, hidden, intermediate, type);
  require_pointer(what, "workspace", task.workspace);
  COTERIE_REQUIRE(task.workspace_bytes >= parts.total, what, ": workspace has ",
                  task.workspace_bytes, " bytes, needs ", parts.total);
  auto* const base = static_cast<std::byte*>(task.workspace);
  const auto ints = [&](std::size_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  const ReindexLists lists{ints(parts.offsets), ints(parts.row_token), ints(parts.pos_of)};
  sort.lists = lists;
  sort.workspace = base + parts.reindex;
  build_reindex(sort, stream);
  const std::int64_t num_pairs = num_tokens * task.top_k;
  const MatrixView inner{base + parts.hidden, num_pairs, intermediate, intermediate, type};
  const MatrixView rows{base + parts.rows, num_pairs, hidden, hidden, type};
  grouped_up({task.x, lists.row_token, lists.expert_offsets, task.gate_up, inner, task.pre,
              task.activation, task.up_bias},
             options, stream);
  run_down({inner, lists.expert_offsets, task.down, rows, task.down_bias}, options, true, stream);
  merge_rows({rows, lists.pos_of, task.weights, task.top_k, task.y}, stream);
}

}  // namespace coterie::kernels::cuda
