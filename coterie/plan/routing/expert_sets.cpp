// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/expert_sets.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::routing {

std::uint64_t ExpertSets::num_tokens() const {
  return std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
}

std::uint64_t ExpertSets::num_picks() const {
  std::uint64_t picks = 0;
  for (std::size_t i = 0; i < num_sets(); ++i) {
    picks += std::uint64_t{tokens[i]} * set(i).size();
  }
  return picks;
}

std::vector<std::uint64_t> ExpertSets::expert_loads() const {
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < num_sets(); ++i) {
    for (const std::uint16_t expert : set(i)) {
      loads[expert] += tokens[i];
    }
  }
  return loads;
}

ExpertSets make_expert_sets(std::span<const std::uint16_t> ids, std::int32_t top_k,
                            std::int32_t num_experts) {
  COTERIE_REQUIRE(top_k > 0, "top_k is ", top_k);
  COTERIE_REQUIRE(num_experts > 0 && num_experts < kNoExpert, "num_experts is ", num_experts);
  const auto width = static_cast<std::size_t>(top_k);
  COTERIE_REQUIRE(ids.size() % width == 0, ids.size(), " ids are no whole rows of ", top_k);
  const std::size_t num_rows = ids.size() / width;

  std::vector<std::uint16_t> sorted(ids.begin(), ids.end());
  for (std::size_t r = 0; r < num_rows; ++r) {
    const auto row = std::span(sorted).subspan(r * width, width);
    std::sort(row.begin(), row.end());
    for (std::size_t i = 0; i < width && row[i] != kNoExpert; ++i) {
      COTERIE_REQUIRE(row[i] < num_experts, "row ", r, ": expert id ", row[i], " is not in [0, ",
                      num_experts, ")");
      COTERIE_REQUIRE(i == 0 || row[i] != row[i - 1], "row ", r, ": expert ", row[i],
                      " stands twice");
    }
  }

  std::vector<std::size_t> order(num_rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto row_of = [&](std::size_t r) { return std::span(sorted).subspan(r * width, width); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::ranges::lexicographical_compare(row_of(a), row_of(b));
  });

  ExpertSets sets;
  sets.num_experts = num_experts;
  for (std::size_t i = 0; i < num_rows; ++i) {
    const auto row = row_of(order[i]);
    if (row[0] == kNoExpert) {
      continue;
    }
    if (i > 0 && std::ranges::equal(row, row_of(order[i - 1]))) {
      ++sets.tokens.back();
      continue;
    }
    const auto end = std::find(row.begin(), row.end(), kNoExpert);
    sets.experts.insert(sets.experts.end(), row.begin(), end);
    sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
    sets.tokens.push_back(1);
  }
  return sets;
}

}  // namespace coterie::routing
