// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/usable_tokens.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"

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
