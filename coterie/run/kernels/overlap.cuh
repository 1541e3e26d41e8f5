// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "coterie/run/kernels/checks_cuda.hpp"

/// Private to the room: kernels of one stream whose starts overlap (programmatic dependent launch
/// from sm_90 on; elsewhere plain launches).
namespace coterie::kernels::cuda {

/// Lets the next kernel start as far as it can without this one's results.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the previous kernel is complete.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// First thing a kernel does with global memory. Since every kernel waits before it lets the next
/// one start, all kernels but the previous one are complete when a kernel starts.
__device__ inline void begin_after_previous() {
  wait_for_previous();
  let_next_start();
}

/// Shape of a launch.
struct LaunchShape {
  dim3 blocks = 1;
  unsigned threads = 1;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;
};

/// Launches a kernel that calls begin_after_previous().
template <typename... Parameters, typename... Arguments>
void launch_overlapped(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
                       Stream stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  if (current_device().major >= 9) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
  }
  config.attrs = attributes;
  require_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace coterie::kernels::cuda
