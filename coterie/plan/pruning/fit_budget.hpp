// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/plan/pruning/device_limit.hpp"

namespace coterie::pruning {

/// A threshold and what it does to the profile it was fitted on.
struct FittedThreshold {
  double min_share = 0;     ///< for Budget::min_share
  double mean_devices = 0;  ///< devices a token and layer, at most the mean asked for
  bool operator==(const FittedThreshold&) const = default;
};

/// Finds the one threshold that spends a mean budget of devices where it keeps most: of all devices
/// that tokens of all layers could drop, those that hold the smallest shares of their token's score
/// go first. So layers and tokens whose score is concentrated get fewer devices. Not thread-safe.
class ThresholdFit {
 public:
  /// Adds a token of a layer. `limit` has choice kKeptMass, min_share 0 and the bounds to keep.
  void add(const DeviceLimit& limit, const Picks& picks);

  /// The smallest threshold with a mean of at most `mean_devices`. kBadInput if not even dropping
  /// down to min_devices everywhere reaches that, naming the least that can be reached.
  [[nodiscard]] FittedThreshold fit(double mean_devices) const;

  [[nodiscard]] std::uint64_t num_tokens() const { return num_tokens_; }

 private:
  std::uint64_t num_tokens_ = 0;
  std::uint64_t num_devices_ = 0;  // with threshold 0
  std::vector<double> thresholds_;
};

}  // namespace coterie::pruning
