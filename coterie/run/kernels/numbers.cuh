// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"

/// Private to the room: a few neighbouring numbers that are loaded and stored at once and computed
/// with in fp32.
namespace coterie::kernels::cuda {

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Numbers {
  T values[kWidth];

  static __device__ Numbers load(const T* from) { return *reinterpret_cast<const Numbers*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Numbers*>(to) = *this; }
  __device__ float get(int i) const {
    if constexpr (sizeof(T) == 2) {
      return __bfloat162float(values[i]);
    } else {
      return values[i];
    }
  }
  __device__ void set(int i, float value) {
    if constexpr (sizeof(T) == 2) {
      values[i] = __float2bfloat16_rn(value);
    } else {
      values[i] = value;
    }
  }
};

inline bool is_aligned(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// Whether all rows start at multiples of `bytes`.
inline bool are_aligned(const ConstMatrixView& view, std::int64_t bytes) {
  return is_aligned(view.data, bytes) && view.row_stride * size_of(view.type) % bytes == 0;
}

}  // namespace coterie::kernels::cuda
