// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

TEST(PlacementQuality, ReachesItsBarsOnOlmoe) {
  if (testing::real_data_folder().empty()) {
    GTEST_SKIP() << "no real routing data beside the repository";
  }
  struct Bar {
    std::int32_t layer;
    std::int32_t num_devices;
    std::optional<double> cap;
    double replicas;
  };
  const Bar bars[] = {{0, 4, {}, 2.74},   {0, 8, {}, 3.85},   {0, 16, {}, 5.16},
                      {15, 4, {}, 2.16},  {15, 8, {}, 3.00},  {15, 16, {}, 4.15},
                      {0, 4, 1.10, 3.14}, {0, 8, 1.10, 4.59}, {15, 4, 1.10, 2.52},
                      {15, 8, 1.10, 3.91}};
  for (const Bar& bar : bars) {
    const auto [fit, held_out] = testing::read_olmoe_halves(bar.layer);
    PlacementOptions options;
    options.num_devices = bar.num_devices;
    options.load_cap = bar.cap;
    options.num_threads = 2;
    const auto placement = place_layer(fit, "coterie", options, bar.layer);
    const auto figures = measure_placement(placement, held_out);
    EXPECT_LE(figures.replicas, bar.replicas) << bar.layer << ", " << bar.num_devices;
    if (bar.cap) {
      EXPECT_LE(measure_placement(placement, fit).load_imbalance, *bar.cap + 1e-12);
      EXPECT_LE(figures.load_imbalance, 1.12);
    }
  }
}

}  // namespace
}  // namespace coterie::placement
