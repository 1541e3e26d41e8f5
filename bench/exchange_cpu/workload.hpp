// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/run/exchange/exchange.hpp"

namespace coterie::bench {

/// The tokens of one rank.
struct RankTokens {
  std::int64_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<std::uint16_t> x;  ///< [num_tokens, hidden] bf16

  [[nodiscard]] exchange::TokenRouting routing() const {
    return {num_tokens, top_k, ids, weights, {}};
  }
};

/// Real routing of one layer, cut in two: even rows to fit placements on, odd rows to run.
struct Workload {
  routing::ExpertSets fitted;
  std::vector<RankTokens> ranks;
};

struct WorkloadOptions {
  std::vector<std::filesystem::path> traces;
  std::int32_t layer = 0;
  int num_ranks = 4;
  std::int64_t tokens_per_rank = 1024;
  std::int64_t hidden = 2048;
};

/// Held-out rows are dealt out to ranks in turn, from the first again when they run out; weights
/// are 1/k, x random. The same on every rank.
Workload make_workload(const WorkloadOptions& options);

}  // namespace coterie::bench
