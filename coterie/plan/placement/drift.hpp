// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// How the routing of one layer has changed between two models (or two times) on the same tokens.
struct LayerDrift {
  std::int32_t layer = 0;
  std::uint64_t num_tokens = 0;
  /// Jensen-Shannon distance (Lin 1991, eq. 3.3; square root of the divergence in bits, so in
  /// [0, 1]) of the experts' shares of all picks.
  double load_distance = 0;
  /// Mean over tokens of the same distance of the token's routing weights over their sum; 0 without
  /// weights.
  double token_distance = 0;
  double same_picks = 0;       ///< share of a token's picks that the other chose too, a mean
  double replicas_before = 0;  ///< C_T of the placement on the routing before
  double replicas_after = 0;
  double load_imbalance_before = 0;  ///< busiest device's picks over the mean
  double load_imbalance_after = 0;

  bool operator==(const LayerDrift&) const = default;
};

Json to_json(const LayerDrift& drift);

/// Compares row by row. kBadInput naming the layer if the traces are of other layers, experts or
/// numbers of rows, or have no rows.
LayerDrift measure_drift(const routing::LayerTrace& before, const routing::LayerTrace& after,
                         const LayerPlacement& placement);

/// Jensen-Shannon distance of two distributions, each given up to a factor; 0 if one is all zero.
double jensen_shannon_distance(const std::vector<double>& a, const std::vector<double>& b);

/// What moving to another placement costs and gains.
struct MoveEstimate {
  double replicas_old = 0;           ///< C_T of the old placement, a mean over layers
  double replicas_new = 0;           ///< of the new one
  std::int64_t num_moved = 0;        ///< experts that a device gets and did not have, all layers
  double bytes_moved = 0;            ///< num_moved * expert_bytes
  double bytes_saved_per_token = 0;  ///< (replicas_old - replicas_new) * row_bytes * layers
  double break_even_tokens = 0;      ///< after which moving has paid; 0 if it never does
  bool worth_it = false;             ///< pays within `horizon_tokens`

  bool operator==(const MoveEstimate&) const = default;
};

Json to_json(const MoveEstimate& estimate);

/// Sizes that the estimate is made with.
struct MoveCosts {
  double expert_bytes = 0;    ///< that travel for an expert: weights, and moments in training
  double row_bytes = 0;       ///< a token's row, both ways (training: all four)
  double horizon_tokens = 0;  ///< tokens until placements are looked at again
};

/// Experts of `to` that were not on that device in `from`.
std::int64_t count_moved(const LayerPlacement& from, const LayerPlacement& to);

/// Old and new placement of the same layers with their C_T, [layers] each; kBadInput if the lists
/// differ in length.
struct PlacementPair {
  const LayerPlacement* from = nullptr;
  const LayerPlacement* to = nullptr;
  double replicas_from = 0;
  double replicas_to = 0;
};
MoveEstimate estimate_move(const std::vector<PlacementPair>& layers, const MoveCosts& costs);

}  // namespace coterie::placement
