// SPDX-License-Identifier: Apache-2.0
/// Placement from C++, without torch: routing in memory -> placement -> file.
#include <cstdio>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace {

/// 1,000 tokens of top-2 routing among 8 experts that like to work in pairs (0, 4), (1, 5), ...
std::vector<std::uint16_t> paired_routing() {
  std::vector<std::uint16_t> ids;
  for (std::uint32_t token = 0; token < 1000; ++token) {
    const auto first = static_cast<std::uint16_t>(token % 4);
    const bool strays = token % 10 == 9;
    ids.push_back(first);
    ids.push_back(static_cast<std::uint16_t>(strays ? (first + 1) % 4 : first + 4));
  }
  return ids;
}

}  // namespace

int main() {
  using namespace coterie;
  try {
    const routing::ExpertSets sets = routing::make_expert_sets(paired_routing(), 2, 8);
    placement::PlacementOptions options;
    options.num_devices = 4;

    placement::Placement placed;
    placed.options = options;
    placed.algorithm = "coterie";
    placed.layers.push_back({0, placement::place_layer(sets, "coterie", options), {}, {}});
    const auto before =
        placement::measure_placement(placement::contiguous_placement(8, 4), sets).replicas;
    const auto after = placement::measure_placement(placed.layers[0].placement, sets).replicas;
    std::printf("devices a token: %.2f in checkpoint order, %.2f placed\n%s", before, after,
                placement::format_placement(placed).c_str());
    return after < before ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code_of(error.code());
  }
}
