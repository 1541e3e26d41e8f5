// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/product_cuda.hpp"
#include "coterie/run/kernels/product_hopper.cuh"
#include "coterie/run/kernels/tensor_map.hpp"

namespace coterie::kernels::cuda {
namespace {

/// Whether wide tiles keep the processors busy, or are faster even so (down-projections).
bool prefers_wide(const GroupedProduct& task) {
  const std::int64_t row_tiles =
      std::min(task.max_rows, task.num_experts + task.max_rows / kTileRows);
  const std::int64_t tiles = row_tiles * divide_up(task.columns, 128);
  return !task.gated || 4 * tiles >= 3 * current_device().num_processors;
}

template <typename Shape>
void launch(const GroupedProduct& task, const CUtensorMap& x_map, const CUtensorMap& w_map,
            const ProductArguments& arguments, Stream stream) {
  const int num_processors = current_device().num_processors;
  require_cuda(
      cudaFuncSetAttribute(product_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Shape::kSharedBytes),
      "grouped product: shared memory");
  const std::int64_t tiles =
      (task.max_rows / kTileRows + task.num_experts) * divide_up(task.columns, Shape::kTileColumns);
  const std::int64_t blocks =
      std::min(divide_up(tiles, Shape::kCluster) * Shape::kCluster,
               std::int64_t{num_processors} / Shape::kCluster * Shape::kCluster);
  launch_overlapped(
      "grouped product", product_kernel<Shape>,
      {static_cast<unsigned>(blocks), kProductThreads, Shape::kSharedBytes, Shape::kCluster},
      stream, x_map, w_map, arguments);
}

}  // namespace

void grouped_product_hopper(const GroupedProduct& task, const ProductOptions& options,
                            Stream stream) {
  const bool gather = task.row_of != nullptr;
  COTERIE_CHECK(gather == task.gated, "only the gated product gathers");
  const bool wide =
      options.tiles == Tiles::kAutomatic ? prefers_wide(task) : options.tiles == Tiles::kWide;
  const std::int64_t halves = task.gated ? 2 : 1;
  const std::int64_t matrix = halves * task.columns * task.depth;
  const CUtensorMap w_map =
      make_map<4>(task.weights, {task.depth, task.columns, halves, task.num_experts},
                  {task.depth, task.columns * task.depth, matrix}, wide ? 128 : 64,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  CUtensorMap x_map{};
  if (!gather) {
    x_map = make_map<2>(task.x, {task.depth, task.x_rows}, {task.x_stride}, kTileRows,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  }
  const ProductArguments arguments{static_cast<const __nv_bfloat16*>(task.x),
                                   task.x_stride,
                                   task.row_of,
                                   task.offsets,
                                   static_cast<int>(task.num_experts),
                                   static_cast<int>(task.depth),
                                   static_cast<int>(task.columns),
                                   static_cast<__nv_bfloat16*>(task.y),
                                   task.y_stride,
                                   static_cast<__nv_bfloat16*>(task.pre),
                                   task.pre_stride,
                                   task.offsets_are_old,
                                   Watchdog{options.watchdog}};
  if (task.gated) {
    wide ? launch<ProductShape<true, true>>(task, x_map, w_map, arguments, stream)
         : launch<ProductShape<true, false>>(task, x_map, w_map, arguments, stream);
  } else {
    wide ? launch<ProductShape<false, true>>(task, x_map, w_map, arguments, stream)
         : launch<ProductShape<false, false>>(task, x_map, w_map, arguments, stream);
  }
}

}  // namespace coterie::kernels::cuda
