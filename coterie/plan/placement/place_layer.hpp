// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// A member of the family of placement algorithms.
struct Algorithm {
  std::string_view name;
  std::string_view purpose;
  /// Sets are those of one layer. `layer` is its number: it stands in messages and picks the stream
  /// of random numbers.
  LayerPlacement (*place)(const routing::ExpertSets& sets, const PlacementOptions& options,
                          std::int32_t layer);
};

/// All members: contiguous, random, round_robin, load_only, occult, coterie.
std::span<const Algorithm> algorithms();

/// The member of that name; kBadInput lists the names if there is none.
const Algorithm& find_algorithm(std::string_view name);

/// Places one layer. kBadInput: options that do not fit each other or the experts. kInfeasible: the
/// load cap cannot be kept; the message names layer, expert and bound. Only `coterie` keeps the
/// load cap, the objective and the node hierarchy; the others are baselines. Deterministic.
LayerPlacement place_layer(const routing::ExpertSets& sets, std::string_view algorithm,
                           const PlacementOptions& options, std::int32_t layer = 0);

}  // namespace coterie::placement
