// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/place_layer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/baselines.hpp"
#include "coterie/plan/placement/coterie_search.hpp"
#include "coterie/plan/placement/seeded_greedy.hpp"

namespace coterie::placement {
namespace {

constexpr std::array<Algorithm, 6> kAlgorithms = {{
    {"contiguous", "checkpoint order: what engines do by default", place_contiguous},
    {"random", "experts shuffled by the seed", place_random},
    {"round_robin", "expert e on device e mod N", place_round_robin},
    {"load_only", "equal loads, co-activation ignored (as EPLB)", place_load_only},
    {"occult", "Algorithm 1 of Occult: greedy on pair counts", place_occult},
    {"coterie", "fewest devices a token under a load cap, by exact swap search", place_coterie},
}};

void check_options(const routing::ExpertSets& sets, const PlacementOptions& options) {
  const std::int32_t devices = options.num_devices;
  COTERIE_REQUIRE(sets.num_experts > 0, "the routing names no expert");
  COTERIE_REQUIRE(devices > 0, "number of devices is ", devices);
  COTERIE_REQUIRE(devices <= sets.num_experts, devices, " devices are more than the ",
                  sets.num_experts, " experts of the model: some device would hold none");
  COTERIE_REQUIRE(options.num_nodes > 0 && devices % options.num_nodes == 0, devices,
                  " devices do not divide among ", options.num_nodes, " nodes");
  const std::int32_t most = sets.num_experts * (devices - 1);
  COTERIE_REQUIRE(options.num_redundant_experts >= 0 && options.num_redundant_experts <= most,
                  options.num_redundant_experts, " redundant experts are not in [0, ", most,
                  "]: no device may hold an expert twice");
  COTERIE_REQUIRE(!options.load_cap || (std::isfinite(*options.load_cap) && *options.load_cap >= 1),
                  "load cap ", options.load_cap.value_or(0),
                  " is below 1: the busiest device cannot be below the mean");
  COTERIE_REQUIRE(options.num_starts > 0, "number of starts is ", options.num_starts);
  COTERIE_REQUIRE(options.sample_sets > 0, "sample of 0 sets");
  COTERIE_REQUIRE(options.num_threads > 0, "number of threads is ", options.num_threads);
}

}  // namespace

std::string_view name_of(Objective objective) {
  return objective == Objective::kMean ? "mean" : "bottleneck";
}

std::span<const Algorithm> algorithms() {
  return kAlgorithms;
}

const Algorithm& find_algorithm(std::string_view name) {
  std::string names;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) {
      return algorithm;
    }
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  fail(ErrorCode::kBadInput, "there is no placement algorithm \"", name, "\": ", names);
}

LayerPlacement place_layer(const routing::ExpertSets& sets, std::string_view algorithm,
                           const PlacementOptions& options, std::int32_t layer) {
  const Algorithm& member = find_algorithm(algorithm);
  check_options(sets, options);
  LayerPlacement placement = member.place(sets, options, layer);
  check_layer_placement(placement, std::string(algorithm));
  return placement;
}

}  // namespace coterie::placement
