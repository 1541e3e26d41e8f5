// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "coterie/run/kernels/kernels.hpp"

/// The door of the room: the GPU through libtorch, for rooms that hold tensors. Nothing here needs
/// a CUDA toolkit or a CUDA build of torch to compile or to link; torch's CUDA library is loaded
/// when it is first asked for (docs/design/020).
namespace coterie::device {

/// What this process can do with GPUs.
struct GpuState {
  bool usable = false;
  int num_devices = 0;
  std::string reason;  ///< why not; empty if usable

  bool operator==(const GpuState&) const = default;
};

/// Loads torch's CUDA library if it is there, and looks. Cheap after the first call; thread-safe.
/// Must run before anything else asks torch about CUDA.
GpuState gpu_state();

/// "cpu", "cuda" (the first GPU) or "cuda:N"; kBadInput naming `source` otherwise, kUnsupported
/// with the reason where there is no such GPU or this build has no CUDA kernels.
at::Device parse_device(const std::string& name, const std::string& source);

/// The stream on which torch queues work on a GPU just now.
kernels::cuda::Stream current_stream(const at::Device& device);
/// Waits for everything queued on a device; nothing to do for the CPU.
void synchronize(const at::Device& device);

/// Memory that torch's allocator has handed out on a device: now, and at most since the last reset.
struct Memory {
  std::int64_t allocated_bytes = 0;
  std::int64_t peak_bytes = 0;

  bool operator==(const Memory&) const = default;
};
/// Zeros for the CPU.
Memory memory_of(const at::Device& device);
void reset_peak_memory(const at::Device& device);

/// The memory of a contiguous tensor of two dimensions (of one: a single row) on any device, as
/// kernels take it. The tensor must stay alive. kInternal if it is not contiguous, kUnsupported for
/// other types than fp64, fp32, bf16, fp16 and int32.
kernels::ConstMatrixView view_of(const at::Tensor& tensor);
kernels::MatrixView mutable_view_of(const at::Tensor& tensor);

}  // namespace coterie::device
