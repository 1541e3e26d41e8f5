// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"

/// Private to the room: tensors as the copy engine (TMA) sees them.
namespace coterie::kernels::cuda {

constexpr int kBoxElements = 64;  // of a box's row: 128 bytes, the width of the swizzle

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that nothing links against the driver.
inline EncodeTiled encode_tiled() {
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

/// A bf16 tensor as the copy engine sees it, in swizzled boxes of 64 elements along dimension 0 and
/// of `boxes` elements along the others. Strides in elements.
template <int kRank>
CUtensorMap make_map(const void* data, const std::int64_t (&sizes)[kRank],
                     const std::int64_t (&strides)[kRank - 1], const int (&boxes)[kRank - 1],
                     CUtensorMapL2promotion promotion) {
  cuuint64_t size[kRank];
  cuuint64_t stride_bytes[kRank - 1];
  cuuint32_t box[kRank];
  cuuint32_t step[kRank];
  for (int i = 0; i < kRank; ++i) {
    size[i] = static_cast<cuuint64_t>(sizes[i]);
    box[i] = static_cast<cuuint32_t>(i == 0 ? kBoxElements : boxes[i - 1]);
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

/// As above, in boxes of 64 elements x `box_rows` rows.
template <int kRank>
CUtensorMap make_map(const void* data, const std::int64_t (&sizes)[kRank],
                     const std::int64_t (&strides)[kRank - 1], int box_rows,
                     CUtensorMapL2promotion promotion) {
  int boxes[kRank - 1];
  for (int i = 0; i + 1 < kRank; ++i) {
    boxes[i] = i == 0 ? box_rows : 1;
  }
  return make_map<kRank>(data, sizes, strides, boxes, promotion);
}

}  // namespace coterie::kernels::cuda
