// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/down_gradient_hopper.cuh"
#include "coterie/run/kernels/row_gradient_hopper.cuh"
#include "coterie/run/kernels/tensor_map.hpp"
#include "coterie/run/kernels/weight_gradient_hopper.cuh"

namespace coterie::kernels::cuda {
namespace {

/// Rows of `columns` elements as the copy engine sees them, in boxes of 64 x `box_rows`.
CUtensorMap rows_map(const void* data, std::int64_t rows, std::int64_t columns,
                     std::int64_t stride_bytes, int box_rows) {
  const std::int64_t stride = stride_bytes / 2;
  return make_map<4>(data, {columns, std::max<std::int64_t>(rows, 1), 1, 1},
                     {stride, stride, stride}, box_rows, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/// A persistent grid of clusters of two.
LaunchShape clusters_for(std::int64_t units, std::size_t shared_bytes) {
  const std::int64_t most = current_device().num_processors / 2;
  return {static_cast<unsigned>(2 * std::min(units, most)), kProductThreads, shared_bytes, 2};
}

/// Blocks of a row gradient's grid; `num_blocks` of columns.
LaunchShape row_clusters(const RowGradient& task, std::int64_t num_blocks,
                         std::size_t shared_bytes) {
  return clusters_for((task.max_rows / kTileRows + task.num_experts) * num_blocks, shared_bytes);
}

template <bool kGated, bool kNarrow>
void launch_down(const RowGradient& task, const CUtensorMap& w_map,
                 const DownGradientArguments& arguments, Stream stream) {
  using Shape = DownGradientShape<kGated, kNarrow>;
  allow_shared<down_gradient_kernel<Shape>>("down gradient", Shape::kSharedBytes);
  launch_overlapped("down gradient", down_gradient_kernel<Shape>,
                    row_clusters(task, arguments.num_blocks, Shape::kSharedBytes), stream, w_map,
                    arguments);
}

/// Blocks of 256 columns, then what is left, if that is 128 or less.
template <bool kGated>
void launch_down(const RowGradient& task, const CUtensorMap& w_map, DownGradientArguments arguments,
                 Stream stream) {
  arguments.num_blocks = (arguments.columns + 127) / 256;
  if (arguments.num_blocks > 0) {
    launch_down<kGated, false>(task, w_map, arguments, stream);
  }
  arguments.first_block = arguments.num_blocks;
  if (arguments.first_block * 256 < arguments.columns) {
    arguments.beside = arguments.num_blocks > 0;
    arguments.num_blocks = 1;
    launch_down<kGated, true>(task, w_map, arguments, stream);
  }
}

/// The gradient as the copy engine stores it, 64 x 64 at a time.
CUtensorMap gradient_map(const WeightGradientArguments& arguments, bool transposed) {
  const std::int64_t rows = transposed ? arguments.b_columns : arguments.a_columns;
  const std::int64_t columns = transposed ? arguments.a_columns : arguments.b_columns;
  return make_map<3>(arguments.out, {columns, rows, arguments.num_experts},
                     {columns, rows * columns}, kBoxElements, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

template <bool kTransposed, Leave kLeave>
void launch_weights(const WeightGradientArguments& arguments, std::int64_t b_rows, Stream stream) {
  using Shape = WeightGradientShape<kTransposed, kLeave>;
  const CUtensorMap b_map =
      rows_map(arguments.b, b_rows, arguments.b_columns, arguments.b_stride_bytes, Shape::kDepth);
  const CUtensorMap out_map = gradient_map(arguments, kTransposed);
  allow_shared<weight_gradient_kernel<Shape>>("weight gradient", Shape::kSharedBytes);
  const std::int64_t units = std::int64_t{arguments.num_experts} *
                             divide_up(arguments.a_columns, 256) *
                             divide_up(arguments.b_columns, 256);
  launch_overlapped("weight gradient", weight_gradient_kernel<Shape>,
                    clusters_for(units, Shape::kSharedBytes), stream, b_map, out_map, arguments);
}

template <bool kTransposed>
void launch_leaving(Leave leave, const WeightGradientArguments& arguments, std::int64_t b_rows,
                    Stream stream) {
  switch (leave) {
    case Leave::kRounded:
      return launch_weights<kTransposed, Leave::kRounded>(arguments, b_rows, stream);
    case Leave::kAddRounded:
      return launch_weights<kTransposed, Leave::kAddRounded>(arguments, b_rows, stream);
    case Leave::kFloat:
      return launch_weights<kTransposed, Leave::kFloat>(arguments, b_rows, stream);
  }
}

}  // namespace

void row_gradient_hopper(const RowGradient& task, const ProductOptions& options, Stream stream) {
  const std::int64_t matrix = task.columns * task.depth;
  const CUtensorMap w_map =
      make_map<4>(task.weights, {task.columns, task.depth, 1, task.num_experts},
                  {task.columns, matrix, matrix}, kDepthStep, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  const int num_experts = static_cast<int>(task.num_experts);
  const int depth = static_cast<int>(task.depth);
  const int columns = static_cast<int>(task.columns);
  const Watchdog watchdog{options.watchdog};
  if (task.fused == nullptr) {
    const CUtensorMap x_map =
        rows_map(task.x.data[0], task.x_rows, task.depth, task.x.stride_bytes[0], kTileRows);
    const CUtensorMap y_map = make_map<3>(task.y.data, {task.columns, task.y.rows, 1},
                                          {task.y.row_stride, task.y.row_stride}, kBoxElements,
                                          CU_TENSOR_MAP_L2_PROMOTION_NONE);
    const RowGradientArguments arguments{task.offsets, num_experts,        depth,
                                         columns,      row_target(task.y), watchdog};
    constexpr std::size_t kBytes = RowGradientShape::kSharedBytes;
    allow_shared<row_gradient_kernel>("row gradient", kBytes);
    launch_overlapped(
        "row gradient", row_gradient_kernel,
        row_clusters(task, divide_up(task.columns, RowGradientShape::kColumns), kBytes), stream,
        x_map, w_map, y_map, arguments);
    return;
  }
  const GroupedDownBackward& fused = *task.fused;
  const RowTarget pre{static_cast<char*>(const_cast<void*>(fused.pre.data)),
                      fused.pre.row_stride * size_of(fused.pre.type)};
  const DownGradientArguments arguments{task.x,
                                        task.row_of,
                                        task.offsets,
                                        num_experts,
                                        depth,
                                        columns,
                                        0,
                                        0,
                                        false,
                                        fused.row_weights,
                                        pre,
                                        row_target(fused.grad_pre),
                                        row_target(fused.hidden),
                                        fused.row_dots,
                                        fused.row_dots_stride,
                                        fused.activation,
                                        watchdog};
  if (fused.activation == Activation::kSwiGlu) {
    launch_down<true>(task, w_map, arguments, stream);
  } else {
    launch_down<false>(task, w_map, arguments, stream);
  }
}

void weight_gradient_hopper(const WeightGradient& task, const ProductOptions& options,
                            Stream stream) {
  // The kernel's first operand is the gathered one; if that is b, the result is transposed.
  const bool transposed = task.b_rows != nullptr || task.b.count > 1;
  COTERIE_CHECK(!transposed || (task.a_rows == nullptr && task.a.count == 1),
                "one operand must lie in order");
  const RowSource& in_order = transposed ? task.a : task.b;
  WeightGradientArguments arguments{};
  arguments.a = transposed ? task.b : task.a;
  arguments.row_of = transposed ? task.b_rows : task.a_rows;
  arguments.a_columns = static_cast<int>(transposed ? task.b_columns : task.a_columns);
  const bool any_rows = (transposed ? task.a_height : task.b_height) > 0;
  arguments.b = any_rows ? in_order.data[0] : static_cast<const char*>(task.out.data);
  arguments.b_stride_bytes = in_order.stride_bytes[0];
  arguments.b_columns = static_cast<int>(transposed ? task.a_columns : task.b_columns);
  arguments.offsets = task.offsets;
  arguments.num_experts = static_cast<int>(task.out.num_experts);
  arguments.out = task.out.data;
  arguments.accumulate = task.out.accumulate;
  arguments.watchdog = Watchdog{options.watchdog};
  const std::int64_t b_rows = transposed ? task.a_height : task.b_height;
  const Leave leave = task.out.type == DType::kFloat32 ? Leave::kFloat
                      : task.out.accumulate            ? Leave::kAddRounded
                                                       : Leave::kRounded;
  if (transposed) {
    launch_leaving<true>(leave, arguments, b_rows, stream);
  } else {
    launch_leaving<false>(leave, arguments, b_rows, stream);
  }
}

}  // namespace coterie::kernels::cuda
