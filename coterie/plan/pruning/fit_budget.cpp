// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/fit_budget.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coterie/base/error.hpp"

namespace coterie::pruning {

void ThresholdFit::add(const DeviceLimit& limit, const Picks& picks) {
  COTERIE_REQUIRE(
      limit.budget().min_share == 0 && !limit.budget().is_unlimited(),
      "a threshold is fitted for budgets with max_devices and without one: min_share is ",
      limit.budget().min_share, ", max_devices ", limit.budget().max_devices);
  const std::vector<double> thresholds = limit.drop_thresholds(picks);
  thresholds_.insert(thresholds_.end(), thresholds.begin(), thresholds.end());
  num_devices_ += limit.choose(picks).size();
  ++num_tokens_;
}

FittedThreshold ThresholdFit::fit(double mean_devices) const {
  COTERIE_REQUIRE(num_tokens_ > 0, "a threshold cannot be fitted to no tokens");
  COTERIE_REQUIRE(std::isfinite(mean_devices) && mean_devices > 0, "a mean of ", mean_devices,
                  " devices a token: it must be positive");
  const auto tokens = static_cast<double>(num_tokens_);
  const auto count = static_cast<double>(num_devices_);
  const auto must_go =
      static_cast<std::int64_t>(std::ceil(std::max(0.0, count - mean_devices * tokens) - 1e-9));
  COTERIE_REQUIRE(must_go <= std::ssize(thresholds_), "a mean of ", mean_devices,
                  " devices a token cannot be reached: the least is ",
                  (count - static_cast<double>(thresholds_.size())) / tokens);
  if (must_go == 0) {
    return {0, count / tokens};
  }
  std::vector<double> sorted = thresholds_;
  std::sort(sorted.begin(), sorted.end());
  const double last = sorted[static_cast<std::size_t>(must_go - 1)];
  const double min_share = std::nextafter(last, std::numeric_limits<double>::infinity());
  const auto gone = std::upper_bound(sorted.begin(), sorted.end(), last) - sorted.begin();
  return {min_share, (count - static_cast<double>(gone)) / tokens};
}

}  // namespace coterie::pruning
