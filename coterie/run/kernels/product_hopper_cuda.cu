// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/run/kernels/checks_cuda.hpp"
#include "coterie/run/kernels/product_cuda.hpp"
#include "coterie/run/kernels/product_few.cuh"
#include "coterie/run/kernels/product_hopper.cuh"
#include "coterie/run/kernels/tensor_map.hpp"

namespace coterie::kernels::cuda {
namespace {

/// Rows an expert, on average, up to which the operands change sides.
constexpr std::int64_t kFewRowsAnExpert = 16;

constexpr auto kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

/// Which tiles kAutomatic stands for: few rows an expert want small ones; wide ones must keep the
/// processors busy, or be faster even so (down-projections). Pre-activations need the large ones.
Tiles resolve_tiles(const GroupedProduct& task, Tiles tiles) {
  if (task.pre.data != nullptr && tiles == Tiles::kFew) {
    tiles = Tiles::kNarrow;
  }
  if (tiles != Tiles::kAutomatic) {
    return tiles;
  }
  if (task.max_rows <= kFewRowsAnExpert * task.num_experts && task.pre.data == nullptr) {
    return Tiles::kFew;
  }
  const std::int64_t row_tiles =
      std::min(task.max_rows, task.num_experts + task.max_rows / kTileRows);
  const std::int64_t num_tiles = row_tiles * divide_up(task.columns, 128);
  return !task.gathers() || 4 * num_tiles >= 3 * current_device().num_processors ? Tiles::kWide
                                                                                 : Tiles::kNarrow;
}

/// Blocks that have work at most: `rows` input rows and `columns` columns a tile.
std::int64_t max_tiles(const GroupedProduct& task, int rows, int columns) {
  return (task.max_rows / rows + std::min(task.num_experts, task.max_rows)) *
         divide_up(task.columns, columns);
}

ProductArguments arguments_of(const GroupedProduct& task, const ProductOptions& options) {
  ProductArguments arguments{};
  arguments.x = task.x;
  arguments.row_of = task.row_of;
  arguments.offsets = task.offsets;
  arguments.num_experts = static_cast<int>(task.num_experts);
  arguments.depth = static_cast<int>(task.depth);
  arguments.columns = static_cast<int>(task.columns);
  arguments.bias = static_cast<const __nv_bfloat16*>(task.bias);
  arguments.activation = task.activation;
  arguments.y = row_target(task.y);
  arguments.pre = row_target(task.pre);
  arguments.float_sums = task.y.type == DType::kFloat32;
  arguments.early = task.offsets_are_old;
  arguments.watchdog = Watchdog{options.watchdog};
  return arguments;
}

template <typename Shape>
void launch(const GroupedProduct& task, const ProductArguments& arguments, Stream stream) {
  const std::int64_t halves = Shape::kGated ? 2 : 1;
  const CUtensorMap w_map =
      make_map<4>(task.weights, {task.depth, task.columns, halves, task.num_experts},
                  {task.depth, task.columns * task.depth, halves * task.columns * task.depth},
                  Shape::kHalfRows, kPromotion);
  CUtensorMap x_map{};
  if constexpr (!Shape::kGather) {
    x_map = make_map<2>(task.x.data[0], {task.depth, task.x_rows}, {task.x.stride_bytes[0] / 2},
                        kTileRows, kPromotion);
  }
  allow_shared<product_kernel<Shape>>("grouped product", Shape::kSharedBytes);
  const std::int64_t tiles = max_tiles(task, kTileRows, Shape::kTileColumns);
  const std::int64_t blocks =
      std::min(divide_up(tiles, Shape::kCluster) * Shape::kCluster,
               std::int64_t{current_device().num_processors} / Shape::kCluster * Shape::kCluster);
  launch_overlapped(
      "grouped product", product_kernel<Shape>,
      {static_cast<unsigned>(blocks), kProductThreads, Shape::kSharedBytes, Shape::kCluster},
      stream, x_map, w_map, arguments);
}

template <typename Shape>
void launch_few(const GroupedProduct& task, const ProductArguments& arguments, Stream stream) {
  const std::int64_t halves = Shape::kGated ? 2 : 1;
  const std::int64_t matrix = task.columns * task.depth;
  const CUtensorMap map =
      make_map<5>(task.weights, {task.depth, 8, halves, task.columns / 8, task.num_experts},
                  {task.depth, matrix, 8 * task.depth, halves * matrix},
                  {8, static_cast<int>(halves), Shape::kTileColumns / 8, 1}, kPromotion);
  allow_shared<few_kernel<Shape>>("grouped product, few rows", Shape::kSharedBytes);
  const std::int64_t blocks = std::min(max_tiles(task, Shape::kRows, Shape::kTileColumns),
                                       std::int64_t{current_device().num_processors});
  launch_overlapped("grouped product, few rows", few_kernel<Shape>,
                    {static_cast<unsigned>(blocks), Shape::kThreads, Shape::kSharedBytes}, stream,
                    map, arguments);
}

/// With two consumers where that leaves each processor six tiles or more.
template <bool kGated, bool kGather, int kRows>
void launch_few_rows(const GroupedProduct& task, const ProductArguments& arguments, Stream stream) {
  using Two = FewShape<kGated, kGather, kRows, 2>;
  const std::int64_t tiles =
      std::min(task.num_experts, task.max_rows) * divide_up(task.columns, Two::kTileColumns);
  if (tiles >= std::int64_t{6} * current_device().num_processors) {
    launch_few<Two>(task, arguments, stream);
  } else {
    launch_few<FewShape<kGated, kGather, kRows, 1>>(task, arguments, stream);
  }
}

template <bool kGated, bool kGather>
void launch_tiles(const GroupedProduct& task, Tiles tiles, const ProductArguments& arguments,
                  Stream stream) {
  if (tiles == Tiles::kWide) {
    launch<ProductShape<kGated, kGather, true>>(task, arguments, stream);
  } else if (tiles == Tiles::kNarrow) {
    launch<ProductShape<kGated, kGather, false>>(task, arguments, stream);
  } else if (task.max_rows <= 4 * task.num_experts) {  // twice the average, more is rare
    launch_few_rows<kGated, kGather, 8>(task, arguments, stream);
  } else if (task.max_rows <= 8 * task.num_experts) {
    launch_few_rows<kGated, kGather, 16>(task, arguments, stream);
  } else {
    launch_few_rows<kGated, kGather, 32>(task, arguments, stream);
  }
}

}  // namespace

void grouped_product_hopper(const GroupedProduct& task, const ProductOptions& options,
                            Stream stream) {
  const Tiles tiles = resolve_tiles(task, options.tiles);
  const ProductArguments arguments = arguments_of(task, options);
  if (task.gated()) {
    launch_tiles<true, true>(task, tiles, arguments, stream);
  } else if (task.gathers()) {
    launch_tiles<false, true>(task, tiles, arguments, stream);
  } else {
    launch_tiles<false, false>(task, tiles, arguments, stream);
  }
}

}  // namespace coterie::kernels::cuda
