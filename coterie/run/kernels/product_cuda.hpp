// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/kernels_cuda.hpp"
#include "coterie/run/kernels/row_source.cuh"

/// Private to the room: the grouped product that grouped_up and grouped_down on a GPU are made of.
namespace coterie::kernels::cuda {

/// y[r] = w[e] x[row_of[r]] for each row r of expert e. All pointers are device memory; sizes are
/// checked already. A product that gathers is an up-projection: its sums, plus bias, are what
/// `activation` is given and what `pre` keeps; with kSwiGlu w[e] is [2N, K], else [N, K].
struct GroupedProduct {
  RowSource x;
  std::int64_t x_rows = 0;
  const std::int32_t* row_of = nullptr;  ///< null: row r of x
  const std::int32_t* offsets = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t max_rows = 0;  ///< bound of offsets[num_experts]
  std::int64_t depth = 0;     ///< K
  std::int64_t columns = 0;   ///< N
  const void* weights = nullptr;
  const void* bias = nullptr;  ///< [E, N], the type of the weights; null: none
  MatrixView y;                ///< the type of the weights, or fp32 where nothing is gathered
  MatrixView pre;              ///< the type of the weights; null data: not kept
  DType type = DType::kBfloat16;
  Activation activation = Activation::kSwiGlu;
  bool offsets_are_old =
      false;  ///< offsets and weights were ready before the previous kernel began

  [[nodiscard]] bool gathers() const { return row_of != nullptr; }
  [[nodiscard]] bool gated() const { return gathers() && activation == Activation::kSwiGlu; }
};

/// Warp-specialised wgmma kernel; bf16, compute capability 9.0.
void grouped_product_hopper(const GroupedProduct& task, const ProductOptions& options,
                            Stream stream);
/// mma.sync kernel (bf16, fp16) or plain multiply-adds (fp32); compute capability 8.0 and above.
void grouped_product_generic(const GroupedProduct& task, Stream stream);

}  // namespace coterie::kernels::cuda
