// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/overlap.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAll = ~0U;

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) {
    v += __shfl_xor_sync(kAll, v, d);
  }
  return v;
}

/// Of all lanes' candidates, the one with the highest logit, ties to the lowest id; id -1 is none.
__device__ void warp_best(float& logit, int& id) {
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(kAll, logit, d);
    const int other_id = __shfl_xor_sync(kAll, id, d);
    const bool better =
        other_id >= 0 && (id < 0 || other > logit || (other == logit && other_id < id));
    logit = better ? other : logit;
    id = better ? other_id : id;
  }
}

__device__ void write_bad_token(const TopkGate& task, std::int64_t token, int lane) {
  if (lane < task.top_k) {
    task.ids[token * task.top_k + lane] = -1;
    task.weights[token * task.top_k + lane] = 0.0F;
  }
  if (lane == 0 && task.faults != nullptr) {
    atomicAdd(&task.faults->num_bad_tokens, 1U);
    atomicMin(reinterpret_cast<long long*>(&task.faults->first_bad_token),
              static_cast<long long>(token));
  }
}

/// One warp a token; lane l holds logits l, l + 32, ...
template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32) gate_kernel(const TopkGate task) {
  begin_after_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= task.num_tokens) {
    return;
  }
  float logit[kPerLane];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int id = lane + 32 * i;
    logit[i] = id < task.num_experts ? task.logits[token * task.logits_stride + id] : 0.0F;
    bad = bad || isnan(logit[i]);
  }
  bad = __any_sync(kAll, bad);
  unsigned taken = 0;
  float highest = 0.0F;
  float chosen_logit = 0.0F;  // lane j keeps the choice number j
  int chosen_id = -1;
  for (int j = 0; j < task.top_k && !bad; ++j) {
    float best = 0.0F;
    int best_id = -1;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int id = lane + 32 * i;
      const bool free = id < task.num_experts && (taken >> i & 1U) == 0;
      if (free && (best_id < 0 || logit[i] > best)) {
        best = logit[i];
        best_id = id;
      }
    }
    warp_best(best, best_id);
    highest = j == 0 ? best : highest;
    bad = isinf(highest);
    taken |= best_id % 32 == lane ? 1U << (best_id / 32) : 0U;
    chosen_logit = lane == j ? best : chosen_logit;
    chosen_id = lane == j ? best_id : chosen_id;
  }
  if (bad) {
    write_bad_token(task, token, lane);
    return;
  }
  const bool mine = lane < task.top_k;
  float score = 0.0F;
  float sum = 1.0F;
  if (task.scores == Scores::kSoftmax) {
    score = mine ? expf(chosen_logit - highest) : 0.0F;
    float all = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      all += lane + 32 * i < task.num_experts ? expf(logit[i] - highest) : 0.0F;
    }
    sum = warp_sum(all);
  } else {
    score = mine ? 1.0F / (1.0F + expf(-chosen_logit)) : 0.0F;
  }
  if (task.renormalise) {
    sum = warp_sum(score);
  }
  if (mine) {
    task.ids[token * task.top_k + lane] = chosen_id;
    task.weights[token * task.top_k + lane] = score / sum;
  }
}

template <int kPerLane>
void launch(const TopkGate& task, Stream stream) {
  const auto blocks = static_cast<unsigned>(divide_up(task.num_tokens, kWarps));
  launch_overlapped("topk_gate", gate_kernel<kPerLane>, {blocks, kWarps * 32}, stream, task);
}

}  // namespace

void topk_gate(const TopkGate& task, Stream stream) {
  const char* const what = "topk_gate";
  require_between(what, "num_experts", task.num_experts, 1, kMaxExperts);
  require_between(what, "top_k", task.top_k, 1, std::min(kMaxTopK, task.num_experts));
  require_between(what, "num_tokens", task.num_tokens, 0, INT32_MAX);
  require_between(what, "logits_stride", task.logits_stride, task.num_experts, INT64_MAX);
  if (task.num_tokens == 0) {
    return;
  }
  require_pointer(what, "logits", task.logits);
  require_pointer(what, "ids", task.ids);
  require_pointer(what, "weights", task.weights);
  if (task.num_experts <= 64) {
    launch<2>(task, stream);
  } else if (task.num_experts <= 128) {
    launch<4>(task, stream);
  } else if (task.num_experts <= 256) {
    launch<8>(task, stream);
  } else {
    launch<32>(task, stream);
  }
}

}  // namespace coterie::kernels::cuda
