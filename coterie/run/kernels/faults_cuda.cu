// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"

namespace coterie::kernels::cuda {
namespace {

__global__ void reset_kernel(Faults* faults) {
  *faults = Faults{};
}

}  // namespace

bool is_built() noexcept {
  return true;
}

void reset_faults(Faults* faults, Stream stream) {
  require_pointer("reset_faults", "faults", faults);
  reset_kernel<<<1, 1, 0, stream>>>(faults);
  require_launch("reset_faults");
}

void check_faults(const Faults* faults, const std::int32_t* ids, int top_k,
                  const std::string& where, Stream stream) {
  Faults found;
  require_cuda(cudaMemcpyAsync(&found, faults, sizeof found, cudaMemcpyDeviceToHost, stream),
               "check_faults");
  require_cuda(cudaStreamSynchronize(stream), "check_faults");
  COTERIE_CHECK(found.watchdog == 0, where, ": a kernel waited in vain");
  COTERIE_REQUIRE(found.num_bad_tokens == 0, where, ": ", found.num_bad_tokens,
                  " tokens have NaN or infinite router logits, the first is token ",
                  found.first_bad_token);
  if (found.num_bad_ids == 0) {
    return;
  }
  const std::int64_t token = found.first_bad_id / 256;
  const std::int64_t slot = found.first_bad_id % 256;
  std::string value;
  if (ids != nullptr) {
    std::int32_t id = 0;
    require_cuda(cudaMemcpy(&id, ids + token * top_k + slot, sizeof id, cudaMemcpyDeviceToHost),
                 "check_faults");
    value = join_message(": ", id);
  }
  fail(ErrorCode::kBadInput, where, ": ", found.num_bad_ids,
       " expert ids are out of range or occur twice in their token, the first is token ", token,
       ", slot ", slot, value);
}

}  // namespace coterie::kernels::cuda
