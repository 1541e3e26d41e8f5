// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/routing.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"

namespace coterie::gates {

Json to_json(const RoutingStatistics& statistics) {
  return {{"num_tokens", statistics.num_tokens},
          {"picks_per_expert", statistics.picks_per_expert},
          {"unpruned_picks_per_expert", statistics.unpruned_picks_per_expert},
          {"num_pruned_tokens", statistics.num_pruned_tokens},
          {"num_dropped_picks", statistics.num_dropped_picks},
          {"num_dropped_tokens", statistics.num_dropped_tokens},
          {"num_bad_tokens", statistics.num_bad_tokens},
          {"first_bad_token", statistics.first_bad_token}};
}

void add_counts(RoutingStatistics& statistics, const at::Tensor& counts) {
  if (!counts.defined()) {
    return;
  }
  const at::Tensor here = counts.to(at::kCPU);
  const std::int64_t* count = here.const_data_ptr<std::int64_t>();
  const std::int64_t num_experts = here.numel() - 4;
  statistics.picks_per_expert.resize(static_cast<std::size_t>(num_experts));
  for (std::int64_t& picks : statistics.picks_per_expert) {
    picks += *count++;
  }
  statistics.num_tokens += count[0];
  statistics.num_dropped_tokens += count[0] - count[1];
  if (statistics.num_bad_tokens == 0 && count[2] > 0) {
    statistics.first_bad_token = count[3];
  }
  statistics.num_bad_tokens += count[2];
}

void require_good_routing(const RoutingStatistics& statistics, const std::string& name) {
  COTERIE_REQUIRE(statistics.num_bad_tokens == 0, name, ": the router's logits of token ",
                  statistics.first_bad_token, " are not numbers (", statistics.num_bad_tokens,
                  " such tokens)");
}

}  // namespace coterie::gates
