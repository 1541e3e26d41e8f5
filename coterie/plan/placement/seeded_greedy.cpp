// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/seeded_greedy.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/slots.hpp"

namespace coterie::placement {
namespace {

/// The unused expert with the largest (sign = 1) or smallest (sign = -1) value; ties: lowest id.
std::size_t best_unused(const std::vector<std::int64_t>& value, const std::vector<bool>& used,
                        int sign) {
  std::size_t best = value.size();
  for (std::size_t e = 0; e < value.size(); ++e) {
    if (!used[e] && (best == value.size() || sign * value[e] > sign * value[best])) {
      best = e;
    }
  }
  COTERIE_CHECK(best < value.size(), "all experts are used");
  return best;
}

}  // namespace

Matrix<std::int64_t> pair_counts(const routing::ExpertSets& sets) {
  const auto num_experts = static_cast<std::size_t>(sets.num_experts);
  Matrix<std::int64_t> pairs(num_experts, num_experts);
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    for (const std::uint16_t e : set) {
      for (const std::uint16_t f : set) {
        pairs(e, f) += e == f ? 0 : sets.tokens[s];
      }
    }
  }
  return pairs;
}

LayerPlacement occult_placement(const Matrix<std::int64_t>& pairs,
                                const std::vector<std::int32_t>& sizes) {
  const std::size_t num_experts = pairs.rows();
  std::vector<std::int32_t> device_of(num_experts, -1);
  std::vector<bool> used(num_experts);
  std::vector<std::int64_t> with_all(num_experts);  // pairs with all placed experts
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::vector<std::int64_t> with_device(num_experts);
    std::int32_t size = 0;
    const auto push = [&](std::size_t expert) {
      used[expert] = true;
      device_of[expert] = static_cast<std::int32_t>(d);
      ++size;
      for (std::size_t e = 0; e < num_experts; ++e) {
        with_all[e] += pairs(expert, e);
        with_device[e] += pairs(expert, e);
      }
    };
    if (d == 0) {
      std::size_t first = 0;
      std::size_t second = 1;
      for (std::size_t i = 0; i < num_experts; ++i) {
        for (std::size_t j = i + 1; j < num_experts; ++j) {
          if (pairs(i, j) > pairs(first, second)) {
            first = i;
            second = j;
          }
        }
      }
      push(first);
      if (sizes[0] > 1) {
        push(second);
      }
    } else {
      push(best_unused(with_all, used, -1));
    }
    while (size < sizes[d]) {
      push(best_unused(with_device, used, 1));
    }
  }
  return from_device_of_expert(device_of, static_cast<std::int32_t>(sizes.size()));
}

LayerPlacement place_occult(const routing::ExpertSets& sets, const PlacementOptions& options,
                            std::int32_t /*layer*/) {
  LayerPlacement placement =
      occult_placement(pair_counts(sets), even_sizes(sets.num_experts, options.num_devices));
  add_hot_copies(placement, sets.expert_loads(), options.num_redundant_experts);
  return placement;
}

}  // namespace coterie::placement
