// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/product_cuda.hpp"
#include "coterie/run/kernels/product_hopper.cuh"

namespace coterie::kernels::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that nothing links against the driver.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    require_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                  cudaEnableDefault, &result),
                 "looking for cuTensorMapEncodeTiled");
    COTERIE_CHECK(found != nullptr, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

/// A bf16 tensor as the copy engine sees it, in boxes of 64 elements x `box_rows` rows, swizzled.
template <int kRank>
CUtensorMap make_map(const void* data, const std::int64_t (&sizes)[kRank],
                     const std::int64_t (&strides)[kRank - 1], int box_rows,
                     CUtensorMapL2promotion promotion) {
  cuuint64_t size[kRank];
  cuuint64_t stride_bytes[kRank - 1];
  cuuint32_t box[kRank];
  cuuint32_t step[kRank];
  for (int i = 0; i < kRank; ++i) {
    size[i] = static_cast<cuuint64_t>(sizes[i]);
    box[i] = i == 0 ? kDepthStep : i == 1 ? static_cast<cuuint32_t>(box_rows) : 1U;
    step[i] = 1;
  }
  for (int i = 0; i + 1 < kRank; ++i) {
    stride_bytes[i] = static_cast<cuuint64_t>(strides[i]) * 2U;
  }
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), size,
                     stride_bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  COTERIE_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled gave ", static_cast<int>(result));
  return map;
}

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
