// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/usable_tokens.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"

namespace coterie::gates {

at::Tensor usable_tokens(const TokenBatch& batch, const at::Tensor& logits,
                         RoutingStatistics& statistics) {
  // The highest logit tells: amax hands NaN on.
  const at::Tensor real = batch.is_real.defined()
                              ? batch.is_real.to(logits.device())
                              : at::ones({batch.num_tokens()}, logits.options().dtype(at::kBool));
  const at::Tensor good = at::isfinite(logits.detach().amax(1));
  const at::Tensor usable = at::logical_and(real, good);
  const at::Tensor bad = at::logical_and(real, at::logical_not(good));
  statistics.num_tokens = usable.sum().item<std::int64_t>();
  statistics.num_bad_tokens = bad.sum().item<std::int64_t>();
  statistics.first_bad_token =
      statistics.num_bad_tokens == 0 ? -1 : bad.nonzero()[0][0].item<std::int64_t>();
  return usable;
}

at::Tensor usable_tokens(const TokenBatch& batch, const at::Tensor& logits) {
  const at::Tensor good = at::isfinite(logits.detach().amax(1));
  return batch.is_real.defined() ? at::logical_and(batch.is_real.to(logits.device()), good) : good;
}

at::Tensor counts_on_gpu(const TokenBatch& batch, const Routing& routing,
                         std::int64_t num_experts) {
  const at::Tensor ids = routing.ids.contiguous();
  at::Tensor counts = at::zeros({num_experts + 4}, ids.options().dtype(at::kLong));
  kernels::cuda::CountIds task;
  task.ids = ids.const_data_ptr<std::int32_t>();
  task.num_ids = ids.numel();
  task.num_experts = static_cast<int>(num_experts);
  task.counts = counts.mutable_data_ptr<std::int64_t>();
  kernels::cuda::count_ids(task, device::current_stream(ids.device()));
  counts[num_experts].copy_(routing.usable.sum());
  counts[num_experts + 1].copy_(ids.amax(1).ge(0).sum());
  const at::Tensor unusable = routing.usable.logical_not();
  const at::Tensor bad =
      batch.is_real.defined() ? unusable.logical_and(batch.is_real.to(ids.device())) : unusable;
  counts[num_experts + 2].copy_(bad.sum());
  if (bad.numel() > 0) {
    counts[num_experts + 3].copy_(bad.to(at::kInt).argmax());
  }
  return counts;
}

void count_picks(const at::Tensor& ids, std::int64_t num_experts, RoutingStatistics& statistics) {
  const at::Tensor picks = ids.to(at::kCPU).contiguous();
  statistics.picks_per_expert.assign(static_cast<std::size_t>(num_experts), 0);
  const std::int32_t* const id = picks.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < picks.numel(); ++i) {
    if (id[i] >= 0) {
      ++statistics.picks_per_expert.at(static_cast<std::size_t>(id[i]));
    }
  }
  count_drops(ids, 0, statistics);
}

void count_drops(const at::Tensor& kept_ids, std::int64_t num_dropped_picks,
                 RoutingStatistics& statistics) {
  statistics.num_dropped_picks = num_dropped_picks;
  const std::int64_t num_served = kept_ids.ge(0).any(1).sum().item<std::int64_t>();
  statistics.num_dropped_tokens = statistics.num_tokens - num_served;
}

std::vector<std::vector<std::int64_t>> usable_by_sequence(const TokenBatch& batch,
                                                          const at::Tensor& usable) {
  const at::Tensor flags = usable.to(at::kCPU).contiguous();
  const bool* const is_usable = flags.const_data_ptr<bool>();
  std::vector<std::vector<std::int64_t>> tokens(static_cast<std::size_t>(batch.num_sequences()));
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    for (std::int64_t t = batch.sequence_begin(s); t < batch.sequence_begin(s + 1); ++t) {
      if (is_usable[t]) {
        tokens[static_cast<std::size_t>(s)].push_back(t);
      }
    }
  }
  return tokens;
}

}  // namespace coterie::gates
