// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/base/random.hpp"
#include "coterie/plan/schedule/schedule.hpp"

namespace coterie::schedule {

/// A stage of about `scale` seconds, some of it latency; now and then nothing.
inline Stage random_stage(Random& random, double scale, double absent = 0.05) {
  if (random.uniform() < absent) {
    return {};
  }
  const double alpha = 0.3 * scale * random.uniform();
  return {cost::CostModel(alpha, scale * random.uniform() / 1e6), 1e6,
          1.0 + static_cast<double>(random.below(3))};
}

inline PhaseWork random_phase(Random& random, bool backward) {
  PhaseWork work;
  work.dispatch = random_stage(random, 1);
  work.gather = random_stage(random, 1);
  work.experts = random_stage(random, 2);
  work.scatter = random_stage(random, 1);
  work.combine = random.uniform() < 0.5 ? work.dispatch : random_stage(random, 1);
  work.shared_experts = random_stage(random, 0.5, 0.6);
  if (backward) {
    work.weights = random_stage(random, 2);
  }
  work.dense_gather = random_stage(random, 0.3);
  work.attention = random_stage(random, 1);
  work.dense_scatter = random_stage(random, 0.3);
  return work;
}

/// A layer that no testbed has: every proportion occurs.
inline LayerWork random_layer(Random& random) {
  LayerWork work;
  work.forward = random_phase(random, false);
  work.backward = random_phase(random, true);
  work.gradient = random_stage(random, 3, 0.2);
  work.devices_per_node = 1 + static_cast<std::int32_t>(random.below(8));
  return work;
}

inline cost::Contention random_contention(Random& random) {
  return random.uniform() < 0.4 ? cost::Contention()
                                : cost::uniform_contention(random.uniform(), random.uniform() / 2);
}

}  // namespace coterie::schedule
