// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels_cuda.hpp"

/// What stands in for the GPU operations in a build without a CUDA compiler.
namespace coterie::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  fail(ErrorCode::kUnsupported, operation, ": this build has no CUDA kernels (configure it where ",
       "nvcc is installed, with -DCOTERIE_CUDA=ON)");
}

}  // namespace

bool is_built() noexcept {
  return false;
}

void reset_faults(Faults*, Stream) {
  refuse("reset_faults");
}
void check_faults(const Faults*, const std::int32_t*, int, const std::string&, Stream) {
  refuse("check_faults");
}
void topk_gate(const TopkGate&, Stream) {
  refuse("topk_gate");
}
std::size_t reindex_workspace_bytes(std::int64_t, int, int) {
  refuse("reindex_workspace_bytes");
}
void build_reindex(const Reindex&, Stream) {
  refuse("build_reindex");
}
void gather_rows(const GatherRows&, Stream) {
  refuse("gather_rows");
}
void scatter_rows(const ScatterRows&, Stream) {
  refuse("scatter_rows");
}
void merge_rows(const MergeRows&, Stream) {
  refuse("merge_rows");
}
void grouped_up(const GroupedUp&, const ProductOptions&, Stream) {
  refuse("grouped_up");
}
void grouped_down(const GroupedDown&, const ProductOptions&, Stream) {
  refuse("grouped_down");
}
PathChoice choose_path(Path, DType) {
  refuse("choose_path");
}
Path resolve_path(Path, DType) {
  refuse("resolve_path");
}
std::size_t expert_layer_workspace_bytes(std::int64_t, int, int, std::int64_t, std::int64_t,
                                         DType) {
  refuse("expert_layer_workspace_bytes");
}
void expert_layer(const ExpertLayer&, const ProductOptions&, Stream) {
  refuse("expert_layer");
}

}  // namespace coterie::kernels::cuda
