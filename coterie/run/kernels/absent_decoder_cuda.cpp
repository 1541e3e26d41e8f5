// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels_decoder_cuda.hpp"

/// What stands in for the GPU operations of a decoder in a build without a CUDA compiler.
namespace coterie::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  fail(ErrorCode::kUnsupported, operation, ": this build has no CUDA kernels (configure it where ",
       "nvcc is installed, with -DCOTERIE_CUDA=ON)");
}

}  // namespace

void rotary(const Rotary&, Stream) {
  refuse("rotary");
}
void cross_entropy(const CrossEntropy&, Stream) {
  refuse("cross_entropy");
}
void adamw_update(const AdamWUpdate&, Stream) {
  refuse("adamw_update");
}
void count_ids(const CountIds&, Stream) {
  refuse("count_ids");
}

}  // namespace coterie::kernels::cuda
