// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/paired_interval.hpp"

#include <algorithm>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::evaluation {

Interval paired_ratio_difference(std::span<const double> a, std::span<const double> b,
                                 std::span<const double> weights, std::uint64_t seed,
                                 int num_resamples) {
  COTERIE_REQUIRE(!a.empty() && a.size() == b.size() && a.size() == weights.size(),
                  "paired interval of ", a.size(), ", ", b.size(), " items and ", weights.size(),
                  " weights");
  COTERIE_REQUIRE(num_resamples >= 40, "paired interval from ", num_resamples, " resamples");
  const auto difference = [&](auto&& item_of) {
    double sum = 0;
    double weight = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::size_t item = item_of(i);
      sum += b[item] - a[item];
      weight += weights[item];
    }
    return weight != 0 ? sum / weight : 0;
  };
  Interval interval;
  interval.mean = difference([](std::size_t i) { return i; });
  Random random(seed, 0x9A17ED);
  std::vector<double> means(static_cast<std::size_t>(num_resamples));
  for (double& mean : means) {
    mean =
        difference([&](std::size_t) { return static_cast<std::size_t>(random.below(a.size())); });
  }
  std::sort(means.begin(), means.end());
  const auto cut = static_cast<std::size_t>(num_resamples / 40);
  interval.low = means[cut];
  interval.high = means[means.size() - 1 - cut];
  return interval;
}

Interval paired_difference(std::span<const double> a, std::span<const double> b, std::uint64_t seed,
                           int num_resamples) {
  const std::vector<double> ones(a.size(), 1.0);
  return paired_ratio_difference(a, b, ones, seed, num_resamples);
}

}  // namespace coterie::evaluation
