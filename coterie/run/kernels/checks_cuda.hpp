// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels_cuda.hpp"

/// Private to the room: checks of arguments and of CUDA's answers.
namespace coterie::kernels::cuda {

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 16;
constexpr int kMaxSources = 16;

/// kInternal naming `what` unless CUDA agreed.
inline void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    fail(ErrorCode::kInternal, what, ": ", cudaGetErrorString(status));
  }
}

/// Checks the launch that just happened.
inline void require_launch(const char* what) {
  require_cuda(cudaGetLastError(), what);
}

/// kBadInput unless low <= value <= high.
inline void require_between(const char* operation, const char* argument, std::int64_t value,
                            std::int64_t low, std::int64_t high) {
  COTERIE_REQUIRE(value >= low && value <= high, operation, ": ", argument, " is ", value,
                  ", outside [", low, ", ", high, "]");
}

/// kBadInput if a pointer to something needed is null.
inline void require_pointer(const char* operation, const char* argument, const void* pointer) {
  COTERIE_REQUIRE(pointer != nullptr, operation, ": ", argument, " is null");
}

/// kBadInput unless pointer and stride allow 16-byte accesses.
inline void require_aligned(const char* operation, const char* argument, const void* pointer,
                            std::int64_t stride_bytes) {
  COTERIE_REQUIRE(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride_bytes % 16 == 0,
                  operation, ": ", argument, " and its rows must start at multiples of 16 bytes; ",
                  "address ", pointer, ", row stride ", stride_bytes, " bytes");
}

/// What this room asks about the current GPU.
struct DeviceFacts {
  int major = 0;  ///< of the compute capability
  int minor = 0;
  int num_processors = 0;
};

inline DeviceFacts current_device() {
  thread_local int known = -1;
  thread_local DeviceFacts facts;
  int device = 0;
  require_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (device == known) {
    return facts;
  }
  const auto ask = [&](int& fact, cudaDeviceAttr attribute) {
    require_cuda(cudaDeviceGetAttribute(&fact, attribute, device), "cudaDeviceGetAttribute");
  };
  ask(facts.major, cudaDevAttrComputeCapabilityMajor);
  ask(facts.minor, cudaDevAttrComputeCapabilityMinor);
  ask(facts.num_processors, cudaDevAttrMultiProcessorCount);
  known = device;
  return facts;
}

/// Lets a kernel have more dynamic shared memory than the usual 48 KiB, on the current GPU.
template <auto kKernel>
void allow_shared(const char* what, std::size_t bytes) {
  thread_local int known = -1;
  thread_local std::size_t allowed = 48U * 1024U;
  int device = 0;
  require_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (device != known) {
    allowed = 48U * 1024U;
    known = device;
  }
  if (bytes > allowed) {
    require_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)),
                 what);
    allowed = bytes;
  }
}

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace coterie::kernels::cuda
