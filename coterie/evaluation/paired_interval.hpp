// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace coterie::evaluation {

/// A mean and the interval in which it lies with 95% confidence.
struct Interval {
  double mean = 0;
  double low = 0;
  double high = 0;

  [[nodiscard]] double half_width() const { return (high - low) / 2; }
  bool operator==(const Interval&) const = default;
};

/// Mean of b - a over items that both systems answered, with a percentile bootstrap over items
/// (Efron 1979): `num_resamples` draws with replacement, 2.5% cut off at each end. The same seed
/// gives the same interval. kBadInput if the lists are empty or of different lengths.
Interval paired_difference(std::span<const double> a, std::span<const double> b,
                           std::uint64_t seed = 0, int num_resamples = 2000);

/// Difference of two ratios sum(b) / sum(weights) - sum(a) / sum(weights), such as bits per byte,
/// resampling items with their weights.
Interval paired_ratio_difference(std::span<const double> a, std::span<const double> b,
                                 std::span<const double> weights, std::uint64_t seed = 0,
                                 int num_resamples = 2000);

}  // namespace coterie::evaluation
