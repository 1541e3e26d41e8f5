// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/capacity.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

void check_limit(const TokenBatch& batch, const Routing& routing, const CapacityOptions& options,
                 const std::string& name) {
  if (options.factor == 0.0) {
    return;
  }
  COTERIE_REQUIRE(routing.top_k > 0, name, ": capacity.factor is ", options.factor,
                  ", but this gate's experts choose their tokens; leave it at 0");
  TokenBatch whole = batch;
  if (options.scope == CapacityScope::kRank) {
    whole.sum_shards = nullptr;
  }
  require_whole_sequences(whole, name + ": a capacity");
}

struct Pick {
  std::int64_t index;  ///< into [T, k]
  double weight;
};

/// The picks of a block in the order in which they are served.
std::vector<Pick> queue_of(const std::vector<std::int64_t>& tokens, const at::Tensor& ids,
                           const at::Tensor& weights, CapacityKeep keep) {
  const std::int64_t k = ids.size(1);
  const std::int32_t* const id = ids.const_data_ptr<std::int32_t>();
  const double* const weight = weights.const_data_ptr<double>();
  std::vector<Pick> queue;
  for (std::int64_t i = 0; i < k; ++i) {
    for (const std::int64_t token : tokens) {
      if (id[token * k + i] >= 0) {
        queue.push_back({token * k + i, weight[token * k + i]});
      }
    }
  }
  if (keep == CapacityKeep::kScore) {
    std::stable_sort(queue.begin(), queue.end(),
                     [](const Pick& a, const Pick& b) { return a.weight > b.weight; });
  }
  return queue;
}

std::vector<CapacityBlock> blocks_of(const TokenBatch& batch, const at::Tensor& usable,
                                     CapacityScope scope) {
  std::vector<CapacityBlock> blocks;
  for (std::vector<std::int64_t>& tokens : usable_by_sequence(batch, usable)) {
    if (scope == CapacityScope::kRank && !blocks.empty()) {
      blocks[0].tokens.insert(blocks[0].tokens.end(), tokens.begin(), tokens.end());
    } else if (!tokens.empty()) {
      blocks.push_back({std::move(tokens), 0});
    }
  }
  return blocks;
}

}  // namespace

std::int64_t expert_capacity(const CapacityOptions& options, std::int64_t num_tokens,
                             std::int64_t top_k, std::int64_t num_experts) {
  COTERIE_CHECK(options.factor > 0.0, "no limit");
  constexpr double kNear = 1e-9;
  const double exact = options.factor * static_cast<double>(top_k) *
                       static_cast<double>(num_tokens) / static_cast<double>(num_experts);
  const double rounded = options.rounding == CapacityRounding::kUp ? std::ceil(exact - kNear)
                                                                   : std::floor(exact + kNear);
  const auto most = static_cast<double>(num_tokens);
  const auto wanted = static_cast<std::int64_t>(std::min(rounded, most));
  return std::min(num_tokens, std::max(options.minimum, wanted));
}

PickPlaces place_picks(const TokenBatch& batch, const Routing& routing,
                       const CapacityOptions& options, const std::string& name) {
  check_limit(batch, routing, options, name);
  const at::Tensor ids = routing.ids.to(at::kCPU).contiguous();
  const at::Tensor weights = routing.weights.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto E = static_cast<std::int64_t>(routing.statistics.picks_per_expert.size());
  const std::int32_t* const id = ids.const_data_ptr<std::int32_t>();
  PickPlaces result;
  result.place = at::full(ids.sizes(), -1, at::kLong);
  std::int64_t* const place = result.place.mutable_data_ptr<std::int64_t>();
  result.blocks = blocks_of(batch, routing.usable, options.scope);
  for (CapacityBlock& block : result.blocks) {
    const auto n = static_cast<std::int64_t>(block.tokens.size());
    const std::int64_t limit =
        options.factor == 0.0 ? n : expert_capacity(options, n, routing.top_k, E);
    std::vector<std::int64_t> filled(static_cast<std::size_t>(E), 0);
    for (const Pick& pick : queue_of(block.tokens, ids, weights, options.keep)) {
      std::int64_t& count = filled.at(static_cast<std::size_t>(id[pick.index]));
      if (count < limit) {
        place[pick.index] = count++;
      } else {
        ++result.num_dropped;
      }
    }
    block.capacity =
        options.factor == 0.0 ? *std::max_element(filled.begin(), filled.end()) : limit;
  }
  return result;
}

}  // namespace coterie::gates
