// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/kernels_cuda.hpp"

/// Private to the room: the grouped product that grouped_up and grouped_down on a GPU are made of.
namespace coterie::kernels::cuda {

/// y[r] = w[e] x[row_of[r]] for each row r of expert e; with `gated`, w[e] is [2N, K] and y is
/// silu(first half) * second half. All pointers are device memory; sizes are checked already.
struct GroupedProduct {
  const void* x = nullptr;
  std::int64_t x_rows = 0;
  std::int64_t x_stride = 0;
  const std::int32_t* row_of = nullptr;  ///< null: row r of x
  const std::int32_t* offsets = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t max_rows = 0;  ///< bound of offsets[num_experts]
  std::int64_t depth = 0;     ///< K
  std::int64_t columns = 0;   ///< N
  const void* weights = nullptr;
  void* y = nullptr;
  std::int64_t y_stride = 0;
  void* pre = nullptr;  ///< gated: also stores the 2N sums before the activation; may be null
  std::int64_t pre_stride = 0;
  DType type = DType::kBfloat16;
  bool gated = false;
  bool offsets_are_old =
      false;  ///< offsets and weights were ready before the previous kernel began
};

/// Warp-specialised wgmma kernel; bf16, compute capability 9.0.
void grouped_product_hopper(const GroupedProduct& task, const ProductOptions& options,
                            Stream stream);
/// mma.sync kernel (bf16, fp16) or plain multiply-adds (fp32); compute capability 8.0 and above.
void grouped_product_generic(const GroupedProduct& task, Stream stream);

}  // namespace coterie::kernels::cuda
