// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/base/random.hpp"
#include "coterie/plan/schedule/schedule.hpp"

namespace coterie::layer {

/// Work in which every step takes some time, of proportions that differ from seed to seed, so that
/// planners choose different counts, shapes and orders.
inline schedule::LayerWork lane_work(std::uint64_t seed) {
  Random random(seed, 21);
  const auto stage = [&](double scale) {
    return schedule::Stage{
        cost::CostModel(0.02 * random.uniform(), scale * (0.2 + random.uniform()) / 1e6), 1e6, 1};
  };
  schedule::LayerWork work;
  for (schedule::PhaseWork* phase : {&work.forward, &work.backward}) {
    phase->dispatch = stage(1);
    phase->gather = stage(0.5);
    phase->experts = stage(2);
    phase->scatter = stage(0.5);
    phase->combine = stage(1);
    phase->attention = stage(0.5);
  }
  work.backward.weights = stage(2);
  work.gradient = stage(2);
  work.devices_per_node = 2;
  return work;
}

}  // namespace coterie::layer
