// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange_cpu/workload.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::bench {
namespace {

RankTokens deal(const routing::LayerTrace& layer, const std::vector<std::uint32_t>& rows, int rank,
                const WorkloadOptions& options) {
  RankTokens tokens;
  tokens.num_tokens = options.tokens_per_rank;
  tokens.top_k = layer.top_k;
  Random random(1, static_cast<std::uint64_t>(rank));
  for (std::int64_t t = 0; t < tokens.num_tokens; ++t) {
    const auto turn = static_cast<std::size_t>(t * options.num_ranks + rank) % rows.size();
    for (const std::uint16_t id : layer.row(rows[turn])) {
      tokens.ids.push_back(id == routing::kNoExpert ? -1 : static_cast<std::int32_t>(id));
      tokens.weights.push_back(1.0F / static_cast<float>(tokens.top_k));
    }
    for (std::int64_t c = 0; c < options.hidden; ++c) {
      tokens.x.push_back(kernels::to_bfloat16(static_cast<float>(2.0 * random.uniform() - 1.0)));
    }
  }
  return tokens;
}

}  // namespace

Workload make_workload(const WorkloadOptions& options) {
  routing::ImportOptions import;
  import.layer_from_name = true;
  const auto trace = routing::open_trace(options.traces, import);
  const auto& layers = trace->header().layers;
  const auto found = std::find(layers.begin(), layers.end(), options.layer);
  COTERIE_REQUIRE(found != layers.end(), trace->name(), ": there is no layer ", options.layer);
  const routing::LayerTrace layer = trace->layer(static_cast<std::size_t>(found - layers.begin()));

  Workload workload;
  workload.fitted = routing::select_sets(layer, {.part = routing::Part::kFit});
  const auto rows = routing::select_rows(layer, {.part = routing::Part::kHeldOut});
  COTERIE_REQUIRE(!rows.empty(), trace->name(), ": layer ", options.layer, " has no rows to run");
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    workload.ranks.push_back(deal(layer, rows, rank, options));
  }
  return workload;
}

}  // namespace coterie::bench
