// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels_backward_cuda.hpp"

/// What stands in for the GPU operations of backward in a build without a CUDA compiler.
namespace coterie::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  fail(ErrorCode::kUnsupported, operation, ": this build has no CUDA kernels (configure it where ",
       "nvcc is installed, with -DCOTERIE_CUDA=ON)");
}

}  // namespace

void weights_of_rows(const WeightsOfRows&, Stream) {
  refuse("weights_of_rows");
}
void grouped_down_backward(const GroupedDownBackward&, const ProductOptions&, Stream) {
  refuse("grouped_down_backward");
}
void sum_row_dots(const SumRowDots&, Stream) {
  refuse("sum_row_dots");
}
void grouped_up_backward(const GroupedUpBackward&, const ProductOptions&, Stream) {
  refuse("grouped_up_backward");
}
void grouped_weight_gradient(const GroupedWeightGradient&, const ProductOptions&, Stream) {
  refuse("grouped_weight_gradient");
}
void grouped_bias_gradient(const GroupedBiasGradient&, Stream) {
  refuse("grouped_bias_gradient");
}
std::size_t expert_layer_backward_workspace_bytes(const ExpertLayerBackward&) {
  refuse("expert_layer_backward_workspace_bytes");
}
void expert_layer_backward(const ExpertLayerBackward&, const ProductOptions&, Stream) {
  refuse("expert_layer_backward");
}

}  // namespace coterie::kernels::cuda
