// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/device/device.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <filesystem>

#include "coterie/base/error.hpp"

namespace coterie::device {
namespace {

/// torch's CUDA library, beside its CPU library. Empty if it is loaded, else why not.
std::string load_torch_cuda() {
  Dl_info info{};
  const auto* symbol = reinterpret_cast<const void*>(&at::globalContext);
  std::filesystem::path library = "libtorch_cuda.so";
  if (dladdr(symbol, &info) != 0 && info.dli_fname != nullptr) {
    library = std::filesystem::path(info.dli_fname).parent_path() / library;
  }
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    return "";
  }
  const char* why = dlerror();
  return join_message("this torch has no CUDA library (", why == nullptr ? library.c_str() : why,
                      ")");
}

GpuState look() {
  GpuState state;
  state.reason = load_torch_cuda();
  if (!state.reason.empty()) {
    return state;
  }
  const c10::impl::DeviceGuardImplInterface* guard =
      c10::impl::hasDeviceGuardImpl(at::kCUDA) ? c10::impl::getDeviceGuardImpl(at::kCUDA) : nullptr;
  state.num_devices = guard == nullptr ? 0 : guard->deviceCount();
  if (state.num_devices == 0) {
    state.reason = "torch finds no GPU (nvidia-smi shows what the driver sees)";
    return state;
  }
  if (!kernels::cuda::is_built()) {
    state.reason = "this build has no CUDA kernels (configure it where nvcc is installed)";
    return state;
  }
  state.usable = true;
  return state;
}

kernels::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return kernels::DType::kFloat64;
    case at::kFloat: return kernels::DType::kFloat32;
    case at::kBFloat16: return kernels::DType::kBfloat16;
    case at::kHalf: return kernels::DType::kFloat16;
    case at::kInt: return kernels::DType::kInt32;
    default: fail(ErrorCode::kUnsupported, "rows of type ", at::toString(type));
  }
}

}  // namespace

GpuState gpu_state() {
  static const GpuState state = look();
  return state;
}

at::Device parse_device(const std::string& name, const std::string& source) {
  if (name == "cpu") {
    return at::kCPU;
  }
  int index = 0;
  const std::string digits = name.starts_with("cuda:") ? name.substr(5) : "0";
  COTERIE_REQUIRE((name == "cuda" || name.starts_with("cuda:")) && !digits.empty() &&
                      digits.size() <= 3 &&
                      digits.find_first_not_of("0123456789") == std::string::npos,
                  source, " is \"", name, "\"; expected cpu, cuda or cuda:N");
  index = std::stoi(digits);
  const GpuState state = gpu_state();
  if (!state.usable) {
    fail(ErrorCode::kUnsupported, source, " is \"", name, "\": ", state.reason);
  }
  if (index >= state.num_devices) {
    fail(ErrorCode::kUnsupported, source, " is \"", name, "\": there are ", state.num_devices,
         " GPUs");
  }
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

kernels::cuda::Stream current_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<kernels::cuda::Stream>(guard.getStreamNativeHandle(guard.getStream(device)));
}

void synchronize(const at::Device& device) {
  if (device.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeDevice(device.index());
  }
}

Memory memory_of(const at::Device& device) {
  if (!device.is_cuda()) {
    return {};
  }
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(device.index());
  const auto& bytes = stats.allocated_bytes[0];  // all pools together
  return {bytes.current, bytes.peak};
}

void reset_peak_memory(const at::Device& device) {
  if (device.is_cuda()) {
    at::getDeviceAllocator(at::kCUDA)->resetPeakStats(device.index());
  }
}

kernels::MatrixView mutable_view_of(const at::Tensor& tensor) {
  COTERIE_CHECK(tensor.is_contiguous() && tensor.dim() >= 1 && tensor.dim() <= 2,
                "a tensor of shape ", tensor.sizes(), " is no contiguous matrix");
  const std::int64_t rows = tensor.dim() == 2 ? tensor.size(0) : 1;
  const std::int64_t columns = tensor.size(-1);
  return {tensor.data_ptr(), rows, columns, columns, dtype_of(tensor.scalar_type())};
}

kernels::ConstMatrixView view_of(const at::Tensor& tensor) {
  return mutable_view_of(tensor);
}

}  // namespace coterie::device
