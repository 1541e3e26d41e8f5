// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/bounds.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/base/matrix.hpp"

namespace coterie::routing {
namespace {

/// Sum over tokens with expert `e` of 1 / (experts of the token on e's device), from below, when
/// every token has `k` experts: `load` tokens hold e, `met` tokens hold it together with a best
/// companion (summed over the s - 1 best), and no device holds more than `most` of a token.
double star_of_expert(double load, double met, std::int32_t k, std::int32_t most) {
  double best = load / std::min(k, most);
  for (std::int32_t c0 = 1; c0 < k; ++c0) {
    const double c = c0;
    // Chord through (c0, 1/c0) and (c0 + 1, 1/(c0 + 1)), summed over tokens with c = 1 +
    // companions.
    best = std::max(best, 2 * load / (c + 1) - met / (c * (c + 1)));
  }
  return best;
}

/// Star bound of the tokens that have exactly `k` experts, as a sum over tokens. `pairs` holds
/// their co-activation counts with loads on the diagonal.
double star_sum(const Matrix<std::uint64_t>& pairs, std::int32_t k, std::int32_t largest) {
  double sum = 0;
  for (std::size_t e = 0; e < pairs.rows(); ++e) {
    std::vector<std::uint64_t> companions(pairs.row(e).begin(), pairs.row(e).end());
    const auto load = static_cast<double>(companions[e]);
    companions.erase(companions.begin() + static_cast<std::ptrdiff_t>(e));
    const auto last =
        companions.begin() + std::min<std::ptrdiff_t>(largest - 1, std::ssize(companions));
    std::partial_sort(companions.begin(), last, companions.end(), std::greater<>());
    const auto met =
        static_cast<double>(std::accumulate(companions.begin(), last, std::uint64_t{0}));
    sum += star_of_expert(load, met, k, largest);
  }
  return sum;
}

}  // namespace

Json to_json(const ReplicaBounds& bounds) {
  return Json{{"random", bounds.random},
              {"trivial", bounds.trivial},
              {"star", bounds.star},
              {"lower", bounds.lower()},
              {"upper", bounds.upper}};
}

std::vector<std::int32_t> even_device_sizes(std::int32_t num_experts, std::int32_t num_devices) {
  COTERIE_REQUIRE(num_devices > 0, "the number of devices is ", num_devices);
  COTERIE_REQUIRE(num_experts >= num_devices, num_experts, " experts are fewer than ", num_devices,
                  " devices");
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(num_devices), num_experts / num_devices);
  std::fill_n(sizes.begin(), num_experts % num_devices, num_experts / num_devices + 1);
  return sizes;
}

double random_replicas(std::int32_t top_k, std::span<const std::int32_t> device_sizes) {
  const std::int32_t num_experts =
      std::accumulate(device_sizes.begin(), device_sizes.end(), std::int32_t{0});
  COTERIE_REQUIRE(top_k >= 0 && top_k <= num_experts, "a token cannot have ", top_k, " of ",
                  num_experts, " experts");
  double expected = 0;
  for (const std::int32_t size : device_sizes) {
    double missed = 1;  // C(E - m, k) / C(E, k)
    for (std::int32_t i = 0; i < top_k; ++i) {
      missed *= std::max(0.0, static_cast<double>(num_experts - size - i)) / (num_experts - i);
    }
    expected += 1 - missed;
  }
  return expected;
}

std::int32_t fewest_devices(std::int32_t top_k, std::span<const std::int32_t> device_sizes) {
  std::vector<std::int32_t> sizes(device_sizes.begin(), device_sizes.end());
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  std::int32_t devices = 0;
  std::int32_t room = 0;
  while (room < top_k) {
    COTERIE_REQUIRE(devices < std::ssize(sizes), top_k, " experts of a token find no room on ",
                    sizes.size(), " devices with ", room, " experts");
    room += sizes[static_cast<std::size_t>(devices++)];
  }
  return devices;
}

ReplicaBounds replica_bounds(const ExpertSets& sets, std::span<const std::int32_t> device_sizes) {
  const auto total_size =
      std::accumulate(device_sizes.begin(), device_sizes.end(), std::int32_t{0});
  COTERIE_REQUIRE(total_size == sets.num_experts, "devices with ", total_size,
                  " experts meet sets of ", sets.num_experts);
  ReplicaBounds sums;
  const auto num_tokens = static_cast<double>(sets.num_tokens());
  if (num_tokens == 0) {
    return sums;
  }
  const auto num_experts = static_cast<std::size_t>(sets.num_experts);
  std::map<std::int32_t, std::pair<double, Matrix<std::uint64_t>>> by_size;  // tokens, pairs
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    auto& [tokens, pairs] = by_size[static_cast<std::int32_t>(set.size())];
    if (pairs.rows() == 0) {
      pairs = Matrix<std::uint64_t>(num_experts, num_experts);
    }
    tokens += sets.tokens[s];
    for (const std::uint16_t i : set) {
      for (const std::uint16_t j : set) {
        pairs(i, j) += sets.tokens[s];
      }
    }
  }
  const std::int32_t largest = *std::max_element(device_sizes.begin(), device_sizes.end());
  for (const auto& [k, group] : by_size) {
    const auto& [tokens, pairs] = group;
    sums.random += tokens * random_replicas(k, device_sizes);
    sums.trivial += tokens * fewest_devices(k, device_sizes);
    sums.star += star_sum(pairs, k, largest);
    sums.upper += tokens * std::min<double>(k, static_cast<double>(device_sizes.size()));
  }
  return {sums.random / num_tokens, sums.trivial / num_tokens, sums.star / num_tokens,
          sums.upper / num_tokens};
}

}  // namespace coterie::routing
