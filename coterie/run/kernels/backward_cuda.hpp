// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/kernels_backward_cuda.hpp"
#include "coterie/run/kernels/row_source.cuh"

/// Private to the room: what the backward operations on a GPU are made of. All pointers are device
/// memory; sizes are checked already.
namespace coterie::kernels::cuda {

/// y[r] = w[e]^T x[row_of[r]] for each row r of expert e, w[e] being [K, N]. Fused: y is not
/// stored but taken through the activation (GroupedDownBackward).
struct RowGradient {
  RowSource x;
  std::int64_t x_rows = 0;  ///< of the first matrix
  const std::int32_t* row_of = nullptr;
  const std::int32_t* offsets = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t max_rows = 0;  ///< bound of offsets[num_experts]
  std::int64_t depth = 0;     ///< K
  std::int64_t columns = 0;   ///< N
  const void* weights = nullptr;
  DType type = DType::kBfloat16;
  MatrixView y;                                ///< plain
  const GroupedDownBackward* fused = nullptr;  ///< or fused: null if plain
};

/// out[e] (+)= sum of a[a_rows[r]]^T b[b_rows[r]].
struct WeightGradient {
  RowSource a;
  RowSource b;
  const std::int32_t* a_rows = nullptr;
  const std::int32_t* b_rows = nullptr;
  std::int64_t a_columns = 0;
  std::int64_t b_columns = 0;
  std::int64_t a_height = 0;  ///< rows of the first matrix
  std::int64_t b_height = 0;
  const std::int32_t* offsets = nullptr;
  DType type = DType::kBfloat16;  ///< of a and b
  ExpertGradients out;
};

void row_gradient_hopper(const RowGradient& task, const ProductOptions& options, Stream stream);
void weight_gradient_hopper(const WeightGradient& task, const ProductOptions& options,
                            Stream stream);
void row_gradient_generic(const RowGradient& task, Stream stream);
/// What is left of a fused row gradient once `hidden` holds y.
void activation_backward(const RowGradient& task, Stream stream);
void weight_gradient_generic(const WeightGradient& task, Stream stream);

/// out[e] (+)= sum of row_weights[r] a[a_rows[r]] (null: all 1); b is not used.
void bias_gradient(const WeightGradient& task, const float* row_weights, Stream stream);
/// dots[r] = x[row_of[r]] . bias[e] for each row r of expert e, bias being [E, depth].
void bias_dots(const RowGradient& task, const void* bias, float* dots, Stream stream);

}  // namespace coterie::kernels::cuda
