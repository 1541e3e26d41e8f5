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

/// Launches a row gradient; `maps` are its tensor maps.
template <typename Shape, typename Kernel, typename Arguments, typename... Maps>
void launch_rows(const RowGradient& task, Kernel kernel, const Arguments& arguments, Stream stream,
                 const Maps&... maps) {
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Shape::kSharedBytes),
               "row gradient: shared memory");
  const std::int64_t units =
      (task.max_rows / kTileRows + task.num_experts) * divide_up(task.columns, Shape::kColumns);
  launch_overlapped("row gradient", kernel, clusters_for(units, Shape::kSharedBytes), stream,
                    maps..., arguments);
}

template <bool kTransposed, Leave kLeave>
void launch_weights(const CUtensorMap& b_map, const WeightGradientArguments& arguments,
                    Stream stream) {
  using Shape = WeightGradientShape<kTransposed, kLeave>;
  require_cuda(
      cudaFuncSetAttribute(weight_gradient_kernel<Shape>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes),
      "weight gradient: shared memory");
  const std::int64_t units = std::int64_t{arguments.num_experts} *
                             divide_up(arguments.a_columns, 256) *
                             divide_up(arguments.b_columns, 256);
  launch_overlapped("weight gradient", weight_gradient_kernel<Shape>,
                    clusters_for(units, Shape::kSharedBytes), stream, b_map, arguments);
}

template <bool kTransposed>
void launch_leaving(Leave leave, const CUtensorMap& b_map, const WeightGradientArguments& arguments,
                    Stream stream) {
  switch (leave) {
    case Leave::kRounded:
      return launch_weights<kTransposed, Leave::kRounded>(b_map, arguments, stream);
    case Leave::kAddRounded:
      return launch_weights<kTransposed, Leave::kAddRounded>(b_map, arguments, stream);
    case Leave::kFloat: return launch_weights<kTransposed, Leave::kFloat>(b_map, arguments, stream);
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
    const RowGradientArguments arguments{task.offsets, num_experts,        depth,
                                         columns,      row_target(task.y), watchdog};
    launch_rows<RowGradientShape>(task, row_gradient_kernel, arguments, stream, x_map, w_map);
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
                                        fused.row_weights,
                                        pre,
                                        row_target(fused.grad_pre),
                                        row_target(fused.hidden),
                                        fused.row_dots,
                                        fused.row_dots_stride,
                                        fused.activation,
                                        watchdog};
  launch_rows<DownGradientShape>(task,
                                 fused.activation == Activation::kSwiGlu
                                     ? down_gradient_kernel<true>
                                     : down_gradient_kernel<false>,
                                 arguments, stream, w_map);
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
  const CUtensorMap b_map = rows_map(arguments.b, transposed ? task.a_height : task.b_height,
                                     arguments.b_columns, arguments.b_stride_bytes, kDepthStep);
  const Leave leave = task.out.type == DType::kFloat32 ? Leave::kFloat
                      : task.out.accumulate            ? Leave::kAddRounded
                                                       : Leave::kRounded;
  if (transposed) {
    launch_leaving<true>(leave, b_map, arguments, stream);
  } else {
    launch_leaving<false>(leave, b_map, arguments, stream);
  }
}

}  // namespace coterie::kernels::cuda
