// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/fit_budget.hpp"
#include "coterie/plan/pruning/pruning_options.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::pruning {

/// What a limit does to the tokens of one layer, counted from their unpruned routing.
struct PruningFigures {
  std::uint64_t num_tokens = 0;                ///< with at least one expert
  double replicas_before = 0;                  ///< C_T: mean devices a token
  double replicas_after = 0;                   ///< the same under the limit
  double limited_share = 0;                    ///< tokens that lose a device
  double kept_mass = 0;                        ///< mean over tokens of kept score / routed score
  double replaced_picks = 0;                   ///< picks off the kept devices, a token
  std::vector<std::uint64_t> tokens_of_count;  ///< [num_devices + 1] tokens by devices after

  /// Bytes on the wire after over before: rows are of one size.
  [[nodiscard]] double traffic_ratio() const { return replicas_after / replicas_before; }
  bool operator==(const PruningFigures&) const = default;
};

/// Counts the rows that take part in statistics. `layer` must hold weights (kBadInput naming the
/// layer otherwise: record the trace with weights). Ids of the trace beyond the placement's experts
/// are kBadInput.
PruningFigures measure_pruning(const routing::LayerTrace& layer,
                               const placement::LayerPlacement& placement,
                               const PruningOptions& options, const Budget& budget);

/// Adds the tokens of a layer to the fit of a threshold; kBadInput as measure_pruning. `bounds`:
/// max_devices and min_devices, without a share.
void add_layer(ThresholdFit& fit, const routing::LayerTrace& layer,
               const placement::LayerPlacement& placement, const Budget& bounds);

}  // namespace coterie::pruning
