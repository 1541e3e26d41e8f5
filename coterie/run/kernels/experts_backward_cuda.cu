// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/checks_cuda.hpp"

namespace coterie::kernels::cuda {
namespace {

void require_expert_weights(const char* operation, const char* argument,
                            const ExpertWeights& weights) {
  require_pointer(operation, argument, weights.data);
  require_aligned(operation, argument, weights.data, weights.columns * size_of(weights.type));
  COTERIE_REQUIRE(weights.type == DType::kBfloat16 || weights.type == DType::kFloat16 ||
                      weights.type == DType::kFloat32,
                  operation, ": ", argument, " must be bf16, fp16 or fp32");
  COTERIE_REQUIRE(weights.scale == nullptr, operation, ": ", argument, " must have no scales");
  require_between(operation, join_message("experts of ", argument).c_str(), weights.num_experts, 1,
                  kMaxExperts);
  require_between(operation, join_message("rows of ", argument).c_str(), weights.rows, 8,
                  INT32_MAX / 2);
  require_between(operation, join_message("columns of ", argument).c_str(), weights.columns, 8,
                  INT32_MAX / 2);
  COTERIE_REQUIRE(weights.rows % 8 == 0, operation, ": ", argument, " has ", weights.rows,
                  " rows, not a multiple of 8");
}

/// A matrix of that type and width whose rows start at multiples of 16 bytes.
void require_matrix(const char* operation, const char* argument, const ConstMatrixView& view,
                    std::int64_t columns, DType type) {
  require_between(operation, join_message("rows of ", argument).c_str(), view.rows, 0, INT32_MAX);
  COTERIE_REQUIRE(view.columns == columns, operation, ": ", argument, " has ", view.columns,
                  " columns, needs ", columns);
  COTERIE_REQUIRE(view.type == type, operation, ": ", argument,
                  " differs in type from the other operands");
  COTERIE_REQUIRE(view.row_stride >= columns, operation, ": row stride of ", argument, " is ",
                  view.row_stride, ", below its ", columns, " columns");
  if (view.rows > 0) {
    require_pointer(operation, argument, view.data);
    require_aligned(operation, argument, view.data, view.row_stride * size_of(view.type));
  }
}

void require_rows(const char* operation, const char* argument, std::int64_t has,
                  std::int64_t needs) {
  COTERIE_REQUIRE(has >= needs, operation, ": ", argument, " has ", has, " rows, needs ", needs);
}

void run(const RowGradient& task, const ProductOptions& options, Stream stream) {
  if (task.max_rows == 0) {
    return;
  }
  if (resolve_path(options.path, task.type) == Path::kHopper) {
    row_gradient_hopper(task, options, stream);
  } else {
    row_gradient_generic(task, stream);
  }
}

}  // namespace

void grouped_down_backward(const GroupedDownBackward& task, const ProductOptions& options,
                           Stream stream) {
  const char* const what = "grouped_down_backward";
  require_expert_weights(what, "down", task.down);
  const std::int64_t inner = task.down.columns;
  const std::int64_t width = inner * pre_activations_per_hidden(task.activation);
  const DType type = task.down.type;
  require_matrix(what, "grad_y", task.grad_y, task.down.rows, type);
  require_matrix(what, "pre", task.pre, width, type);
  require_matrix(what, "grad_pre", task.grad_pre, width, type);
  require_rows(what, "grad_pre", task.grad_pre.rows, task.pre.rows);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  if (task.hidden.data != nullptr) {
    require_matrix(what, "hidden", task.hidden, inner, type);
    require_rows(what, "hidden", task.hidden.rows, task.pre.rows);
  }
  if (task.row_dots != nullptr) {
    require_between(what, "row_dots_stride", task.row_dots_stride, task.pre.rows, INT32_MAX);
  }
  RowGradient gradient;
  gradient.x = row_source(what, "grad_y", task.grad_y, task.more_grad_y);
  gradient.x_rows = task.grad_y.rows;
  gradient.row_of = task.row_token;
  gradient.offsets = task.expert_offsets;
  gradient.num_experts = task.down.num_experts;
  gradient.max_rows = task.pre.rows;
  gradient.depth = task.down.rows;
  gradient.columns = inner;
  gradient.weights = task.down.data;
  gradient.type = type;
  gradient.fused = &task;
  COTERIE_REQUIRE(task.hidden.data != nullptr || task.pre.rows == 0 ||
                      resolve_path(options.path, type) == Path::kHopper,
                  what, ": the generic kernels need hidden");
  run(gradient, options, stream);
  if (task.bias != nullptr && task.row_dots != nullptr && task.pre.rows > 0) {
    require_aligned(what, "bias", task.bias, task.down.rows * size_of(type));
    bias_dots(gradient, task.bias, task.row_dots + row_dot_parts(inner) * task.row_dots_stride,
              stream);
  }
}

void grouped_up_backward(const GroupedUpBackward& task, const ProductOptions& options,
                         Stream stream) {
  const char* const what = "grouped_up_backward";
  require_expert_weights(what, "gate_up", task.gate_up);
  const DType type = task.gate_up.type;
  require_matrix(what, "grad_pre", task.grad_pre, task.gate_up.rows, type);
  require_matrix(what, "grad_rows", task.grad_rows, task.gate_up.columns, type);
  require_rows(what, "grad_rows", task.grad_rows.rows, task.grad_pre.rows);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  RowGradient gradient;
  gradient.x = row_source(what, "grad_pre", task.grad_pre, {});
  gradient.x_rows = task.grad_pre.rows;
  gradient.offsets = task.expert_offsets;
  gradient.num_experts = task.gate_up.num_experts;
  gradient.max_rows = task.grad_pre.rows;
  gradient.depth = task.gate_up.rows;
  gradient.columns = task.gate_up.columns;
  gradient.weights = task.gate_up.data;
  gradient.type = type;
  gradient.y = task.grad_rows;
  run(gradient, options, stream);
}

void grouped_weight_gradient(const GroupedWeightGradient& task, const ProductOptions& options,
                             Stream stream) {
  const char* const what = "grouped_weight_gradient";
  const ExpertGradients& out = task.gradient;
  const DType type = task.a.type;
  require_between(what, "experts of gradient", out.num_experts, 1, kMaxExperts);
  require_matrix(what, "a", task.a, out.rows, type);
  require_matrix(what, "b", task.b, out.columns, type);
  COTERIE_REQUIRE(out.rows % 8 == 0 && out.columns % 8 == 0, what, ": gradient is ", out.rows,
                  " x ", out.columns, ", not multiples of 8");
  COTERIE_REQUIRE(out.type == type || out.type == DType::kFloat32, what,
                  ": gradient must be fp32 or have the type of a and b");
  require_pointer(what, "gradient", out.data);
  require_aligned(what, "gradient", out.data, out.columns * size_of(out.type));
  require_pointer(what, "expert_offsets", task.expert_offsets);
  WeightGradient gradient;
  gradient.a = row_source(what, "a", task.a, task.more_a);
  gradient.b = row_source(what, "b", task.b, task.more_b);
  gradient.a_rows = task.a_rows;
  gradient.b_rows = task.b_rows;
  gradient.a_columns = out.rows;
  gradient.b_columns = out.columns;
  gradient.a_height = task.a.rows;
  gradient.b_height = task.b.rows;
  gradient.offsets = task.expert_offsets;
  gradient.type = type;
  gradient.out = out;
  const bool both = (task.a_rows != nullptr || gradient.a.count > 1) &&
                    (task.b_rows != nullptr || gradient.b.count > 1);
  COTERIE_REQUIRE(!both || options.path != Path::kHopper, what,
                  ": the Hopper kernel gathers a or b, not both");
  const Path path = resolve_path(options.path, type);
  if (path == Path::kHopper && !both) {
    weight_gradient_hopper(gradient, options, stream);
  } else {
    weight_gradient_generic(gradient, stream);
  }
}

void grouped_bias_gradient(const GroupedBiasGradient& task, Stream stream) {
  const char* const what = "grouped_bias_gradient";
  const ExpertGradients& out = task.gradient;
  const DType type = task.a.type;
  require_between(what, "experts of gradient", out.num_experts, 1, kMaxExperts);
  require_between(what, "rows of gradient", out.rows, 1, 1);
  require_matrix(what, "a", task.a, out.columns, type);
  COTERIE_REQUIRE(type == DType::kBfloat16 || type == DType::kFloat16 || type == DType::kFloat32,
                  what, ": a must be bf16, fp16 or fp32");
  COTERIE_REQUIRE(out.columns % 2 == 0, what, ": gradient has ", out.columns,
                  " columns, an odd number");
  COTERIE_REQUIRE(out.type == type || out.type == DType::kFloat32, what,
                  ": gradient must be fp32 or have the type of a");
  require_pointer(what, "gradient", out.data);
  require_pointer(what, "expert_offsets", task.expert_offsets);
  WeightGradient gradient;
  gradient.a = row_source(what, "a", task.a, task.more_a);
  gradient.a_rows = task.a_rows;
  gradient.a_columns = out.columns;
  gradient.offsets = task.expert_offsets;
  gradient.type = type;
  gradient.out = out;
  bias_gradient(gradient, task.row_weights, stream);
}

}  // namespace coterie::kernels::cuda
