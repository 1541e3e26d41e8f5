// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: products of a warp (mma.sync, from compute capability 8.0), and elements as
/// numbers. The last argument of multiply names the type.
namespace coterie::kernels::cuda {

__device__ inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1, __nv_bfloat16 /*type*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1, __half /*type*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline float to_float(float v) {
  return v;
}
__device__ inline float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ inline float to_float(__half v) {
  return __half2float(v);
}

/// Rounds to what `to` is.
__device__ inline void from_float(float* to, float v) {
  *to = v;
}
__device__ inline void from_float(__nv_bfloat16* to, float v) {
  *to = __float2bfloat16_rn(v);
}
__device__ inline void from_float(__half* to, float v) {
  *to = __float2half_rn(v);
}

/// Calls with a value of the type: fp32, fp16, else bf16.
template <typename Call>
void with_type(DType type, const Call& call) {
  switch (type) {
    case DType::kFloat32: call(float{}); break;
    case DType::kFloat16: call(__half{}); break;
    default: call(__nv_bfloat16{});
  }
}

}  // namespace coterie::kernels::cuda
