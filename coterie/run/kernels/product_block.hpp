// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "coterie/run/kernels/activation_block.hpp"
#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/outer_block.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: what one thread computes in one go, and the back ends that can.
namespace coterie::kernels {

/// y = x w^T for the rows of one expert and a range of its outputs, by one thread.
struct ProductBlock {
  const void* const* x_rows = nullptr;  ///< [num_rows]; null: a row of zeros, whose output is zero
  std::int64_t num_rows = 0;
  std::int64_t depth = 0;  ///< K
  DType x_type = DType::kFloat32;
  const char* w = nullptr;     ///< first weight row of the range
  const char* w_up = nullptr;  ///< gated: first row of the range in the second half; else null
  std::int64_t w_stride = 0;   ///< bytes between weight rows
  DType w_type = DType::kFloat32;
  std::int64_t num_columns = 0;  ///< outputs a row
  char* y = nullptr;             ///< first row, first column of the range
  std::int64_t y_stride = 0;     ///< bytes between output rows
  std::int64_t y_size = 4;       ///< bytes of an output
  DType y_type = DType::kFloat32;
  Epilogue epilogue = Epilogue::kNone;
  const char* bias = nullptr;     ///< first of the range; null: none
  const char* bias_up = nullptr;  ///< gated: first of the range in the second half
  std::int64_t bias_size = 4;
  DType bias_type = DType::kFloat32;
  char* pre = nullptr;          ///< as y: what the epilogue is given; null: not wanted
  std::int64_t pre_stride = 0;  ///< bytes between its rows
  std::int64_t pre_up = 0;      ///< gated: bytes from a row's first half to its second
  std::int64_t pre_size = 4;
  DType pre_type = DType::kFloat32;
  char* scratch = nullptr;  ///< scratch_bytes(depth) bytes, 64-byte aligned
};

/// One back end's vector kernels.
struct ProductKernels {
  std::int64_t (*scratch_bytes)(std::int64_t depth);
  void (*run)(const ProductBlock& block);
  void (*outer_fp32)(const OuterBlock& block);
  void (*outer_fp64)(const OuterBlock& block);
  void (*down_backward_row)(const DownBackwardRow& row);
};

/// Those of a back end other than kReference, which must be available.
ProductKernels kernels_of(Backend backend);

ProductKernels product_kernels_generic();
ProductKernels product_kernels_avx2();         ///< x86-64 builds only
ProductKernels product_kernels_avx512();       ///< x86-64 builds only
ProductKernels product_kernels_avx512_bf16();  ///< x86-64 builds only

}  // namespace coterie::kernels
