// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/column_shares.hpp"

#include <algorithm>

namespace coterie::kernels {
namespace {

/// Work of one unit of outputs in arbitrary numbers: few rows cost the reading of the weights.
std::int64_t cost_of(std::int64_t num_rows) {
  return num_rows == 0 ? 0 : std::max<std::int64_t>(num_rows, 6);
}

}  // namespace

std::vector<std::vector<ColumnShare>> share_columns(std::span<const std::int64_t> offsets,
                                                    std::int64_t num_columns, int num_threads) {
  const std::size_t num_experts = offsets.size() - 1;
  const std::int64_t num_units = (num_columns + kShareUnit - 1) / kShareUnit;
  std::int64_t total = 0;
  for (std::size_t e = 0; e < num_experts; ++e) {
    total += cost_of(offsets[e + 1] - offsets[e]) * num_units;
  }
  std::vector<std::vector<ColumnShare>> lists(static_cast<std::size_t>(num_threads));
  std::int64_t before = 0;
  for (std::size_t e = 0; e < num_experts; ++e) {
    const std::int64_t cost = cost_of(offsets[e + 1] - offsets[e]);
    for (std::int64_t unit = 0; cost > 0 && unit < num_units; ++unit, before += cost) {
      const std::int64_t thread = (before + cost / 2) * num_threads / total;
      std::vector<ColumnShare>& list = lists[static_cast<std::size_t>(thread)];
      const std::int64_t end = std::min((unit + 1) * kShareUnit, num_columns);
      if (list.empty() || list.back().expert != e) {
        list.push_back({e, unit * kShareUnit, end});
      } else {
        list.back().end = end;
      }
    }
  }
  return lists;
}

}  // namespace coterie::kernels
