// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/kernels_backward_cuda.hpp"
#include "coterie/run/kernels/workspace.hpp"

namespace coterie::kernels::cuda {
namespace {

constexpr const char* kWhat = "expert_layer_backward";

/// Where the parts of the workspace begin. `inner` (the weighted hidden rows) is dead when
/// `grad_rows` is written, so the two share memory.
struct Parts {
  std::size_t offsets = 0;
  std::size_t row_token = 0;
  std::size_t pos_of = 0;
  std::size_t row_weights = 0;
  std::size_t dots = 0;
  std::size_t reindex = 0;
  std::size_t grad_pre = 0;
  std::size_t grad_rows = 0;
  std::size_t total = 0;
  bool inner_in_gradient = false;  // then the weighted hidden rows lie where grad_gate_up will
};

std::int64_t num_dot_parts(const ExpertLayerBackward& task) {
  return row_dot_parts(task.down.columns) + (task.down_bias != nullptr ? 1 : 0);
}

Parts parts_of(const ExpertLayerBackward& task) {
  const std::int64_t num_tokens = task.x.rows;
  const auto pairs = static_cast<std::size_t>(num_tokens * task.top_k);
  const auto hidden = static_cast<std::size_t>(task.gate_up.columns);
  const auto inner = static_cast<std::size_t>(task.down.columns);
  const auto width = static_cast<std::size_t>(task.gate_up.rows);
  const auto experts = static_cast<std::size_t>(task.gate_up.num_experts);
  Parts parts;
  parts.inner_in_gradient =
      !task.grad_gate_up.accumulate &&
      pairs * inner * 2 <=
          experts * width * hidden * static_cast<std::size_t>(size_of(task.grad_gate_up.type));
  parts.row_token = align((experts + 1) * 4);
  parts.pos_of = parts.row_token + align(pairs * 4);
  parts.row_weights = parts.pos_of + align(pairs * 4);
  parts.dots = parts.row_weights + align(pairs * 4);
  const auto dots = static_cast<std::size_t>(num_dot_parts(task));
  parts.reindex = parts.dots + (task.grad_weights != nullptr ? align(dots * pairs * 4) : 0);
  parts.grad_pre =
      parts.reindex + align(reindex_workspace_bytes(num_tokens, task.top_k,
                                                    static_cast<int>(task.gate_up.num_experts)));
  parts.grad_rows = parts.grad_pre + (task.reuse_pre ? 0 : align(pairs * width * 2));
  parts.total = parts.grad_rows + align(std::max(pairs * hidden * 2,
                                                 parts.inner_in_gradient ? 0 : pairs * inner * 2));
  return parts;
}

void require_sizes(const ExpertLayerBackward& task) {
  require_between(kWhat, "top_k", task.top_k, 1, kMaxTopK);
  require_between(kWhat, "rows of x", task.x.rows, 0, (INT32_MAX - 65536) / task.top_k);
  COTERIE_REQUIRE(task.gate_up.type == DType::kBfloat16 && task.down.type == DType::kBfloat16,
                  kWhat, ": weights must be bf16");
  COTERIE_REQUIRE(
      task.down.num_experts == task.gate_up.num_experts &&
          task.gate_up.rows == task.down.columns * pre_activations_per_hidden(task.activation) &&
          task.gate_up.columns == task.down.rows,
      kWhat, ": gate_up is ", task.gate_up.num_experts, " x ", task.gate_up.rows, " x ",
      task.gate_up.columns, ", down is ", task.down.num_experts, " x ", task.down.rows, " x ",
      task.down.columns, ", the activation is ", name_of(task.activation));
  const auto same = [](const ExpertGradients& gradient, const ExpertWeights& weights) {
    return gradient.num_experts == weights.num_experts && gradient.rows == weights.rows &&
           gradient.columns == weights.columns;
  };
  COTERIE_REQUIRE(same(task.grad_gate_up, task.gate_up), kWhat,
                  ": grad_gate_up differs in shape from gate_up");
  COTERIE_REQUIRE(same(task.grad_down, task.down), kWhat, ": grad_down differs in shape from down");
  const std::int64_t pairs = task.x.rows * task.top_k;
  COTERIE_REQUIRE(task.grad_y.rows == task.x.rows && task.grad_x.rows == task.x.rows, kWhat,
                  ": x has ", task.x.rows, " rows, grad_y ", task.grad_y.rows, ", grad_x ",
                  task.grad_x.rows);
  COTERIE_REQUIRE(task.pre.rows >= pairs, kWhat, ": pre has ", task.pre.rows, " rows, needs ",
                  pairs);
  require_pointer(kWhat, "workspace", task.workspace);
}

/// The parts themselves.
struct Buffers {
  ReindexLists lists;
  float* row_weights = nullptr;
  float* dots = nullptr;
  void* reindex = nullptr;
  MatrixView pre;
  MatrixView grad_pre;
  MatrixView inner;
  MatrixView grad_rows;
};

Buffers buffers_of(const ExpertLayerBackward& task, const Parts& parts) {
  auto* const base = static_cast<std::byte*>(task.workspace);
  const auto ints = [&](std::size_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  const auto floats = [&](std::size_t at) { return reinterpret_cast<float*>(base + at); };
  const std::int64_t pairs = task.x.rows * task.top_k;
  const auto matrix = [&](void* data, std::int64_t columns) {
    return MatrixView{data, pairs, columns, columns, DType::kBfloat16};
  };
  const std::int64_t inner = task.down.columns;
  Buffers buffers;
  buffers.lists = {ints(parts.offsets), ints(parts.row_token), ints(parts.pos_of)};
  buffers.row_weights = floats(parts.row_weights);
  buffers.dots = task.grad_weights != nullptr ? floats(parts.dots) : nullptr;
  buffers.reindex = base + parts.reindex;
  buffers.pre = task.pre;
  buffers.pre.rows = pairs;
  buffers.grad_pre =
      task.reuse_pre ? buffers.pre : matrix(base + parts.grad_pre, task.gate_up.rows);
  buffers.inner =
      matrix(parts.inner_in_gradient ? task.grad_gate_up.data : base + parts.grad_rows, inner);
  buffers.grad_rows = matrix(base + parts.grad_rows, task.gate_up.columns);
  return buffers;
}

/// Re-index lists again, and the routing weight of each row.
void sort_pairs(const ExpertLayerBackward& task, const Buffers& buffers, Stream stream) {
  Reindex reindex;
  reindex.ids = task.ids;
  reindex.num_tokens = task.x.rows;
  reindex.top_k = task.top_k;
  reindex.num_experts = static_cast<int>(task.gate_up.num_experts);
  reindex.lists = buffers.lists;
  reindex.workspace = buffers.reindex;
  build_reindex(reindex, stream);
  weights_of_rows(
      {task.weights, buffers.lists.pos_of, task.x.rows * task.top_k, buffers.row_weights}, stream);
}

/// grad_down, then grad_gate_up, whose memory may hold `inner` until then.
void weight_gradients(const ExpertLayerBackward& task, const Buffers& buffers,
                      const ProductOptions& options, Stream stream) {
  GroupedWeightGradient weights;
  weights.expert_offsets = buffers.lists.expert_offsets;
  weights.a = task.grad_y;
  weights.a_rows = buffers.lists.row_token;
  weights.b = buffers.inner;
  weights.gradient = task.grad_down;
  grouped_weight_gradient(weights, options, stream);
  weights.a = buffers.grad_pre;
  weights.a_rows = nullptr;
  weights.b = task.x;
  weights.b_rows = buffers.lists.row_token;
  weights.gradient = task.grad_gate_up;
  grouped_weight_gradient(weights, options, stream);
}

/// Those that are wanted. Before the weight gradients: they read what is left in buffers.
void bias_gradients(const ExpertLayerBackward& task, const Buffers& buffers, Stream stream) {
  GroupedBiasGradient biases;
  biases.expert_offsets = buffers.lists.expert_offsets;
  if (task.grad_up_bias.data != nullptr) {
    biases.a = buffers.grad_pre;
    biases.gradient = task.grad_up_bias;
    grouped_bias_gradient(biases, stream);
  }
  if (task.grad_down_bias.data != nullptr) {
    biases.a = task.grad_y;
    biases.a_rows = buffers.lists.row_token;
    biases.row_weights = buffers.row_weights;
    biases.gradient = task.grad_down_bias;
    grouped_bias_gradient(biases, stream);
  }
}

}  // namespace

std::size_t expert_layer_backward_workspace_bytes(const ExpertLayerBackward& task) {
  return parts_of(task).total;
}

void expert_layer_backward(const ExpertLayerBackward& task, const ProductOptions& options,
                           Stream stream) {
  require_sizes(task);
  const Parts parts = parts_of(task);
  COTERIE_REQUIRE(task.workspace_bytes >= parts.total, kWhat, ": workspace has ",
                  task.workspace_bytes, " bytes, needs ", parts.total);
  const Buffers buffers = buffers_of(task, parts);
  const ReindexLists& lists = buffers.lists;
  const std::int64_t pairs = task.x.rows * task.top_k;
  sort_pairs(task, buffers, stream);
  GroupedDownBackward down;
  down.grad_y = task.grad_y;
  down.row_token = lists.row_token;
  down.expert_offsets = lists.expert_offsets;
  down.row_weights = buffers.row_weights;
  down.down = task.down;
  down.pre = buffers.pre;
  down.grad_pre = buffers.grad_pre;
  down.hidden = buffers.inner;
  down.row_dots = buffers.dots;
  down.row_dots_stride = pairs;
  down.activation = task.activation;
  down.bias = task.down_bias;
  grouped_down_backward(down, options, stream);
  bias_gradients(task, buffers, stream);
  weight_gradients(task, buffers, options, stream);
  grouped_up_backward({buffers.grad_pre, lists.expert_offsets, task.gate_up, buffers.grad_rows},
                      options, stream);
  MergeRows merge;
  merge.from = buffers.grad_rows;
  merge.pos_of = lists.pos_of;
  merge.top_k = task.top_k;
  merge.to = task.grad_x;
  merge_rows(merge, stream);
  if (task.grad_weights != nullptr) {
    sum_row_dots({buffers.dots, num_dot_parts(task), pairs, lists.pos_of, pairs, task.grad_weights},
                 stream);
  }
}

}  // namespace coterie::kernels::cuda
