// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coterie::placement {

/// What a search makes small.
enum class Objective {
  kMean,        ///< C_T: devices a token, averaged over tokens
  kBottleneck,  ///< C_T x max/mean rows received: the rows of the busiest device
};

/// "mean", "bottleneck".
std::string_view name_of(Objective objective);

/// What a user asks of a placement. Two equal options and equal expert sets give equal placements,
/// whatever `num_threads` is.
struct PlacementOptions {
  std::int32_t num_devices = 1;
  /// Devices are cut into this many nodes, consecutive devices together; must divide num_devices.
  /// Above 1, experts are shared out among nodes first and then inside each node.
  std::int32_t num_nodes = 1;
  /// Extra slots a layer in all, filled with second copies of experts.
  std::int32_t num_redundant_experts = 0;
  /// Largest load of a device over the mean load, on the fitted rows; nothing: no cap.
  std::optional<double> load_cap = 1.10;
  Objective objective = Objective::kMean;
  std::uint64_t seed = 0;
  /// Searches from different starts; more are slower and at least as good on the fitted rows.
  std::int32_t num_starts = 8;
  /// Distinct sets that starts work on (evenly taken where there are more); the final polish and
  /// every reported figure use all sets.
  std::size_t sample_sets = 20000;
  std::int32_t num_threads = 1;

  bool operator==(const PlacementOptions&) const = default;
};

}  // namespace coterie::placement
