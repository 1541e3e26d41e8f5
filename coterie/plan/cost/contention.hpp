// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "coterie/base/json.hpp"
#include "coterie/plan/cost/resource.hpp"

namespace coterie::cost {

/// How much slower a task runs while others run on the same device: pairwise factors, 1 for "not at
/// all". With several others the excesses add up: 1 + sum of (factor - 1).
struct Contention {
  /// [victim][other] >= 1. The diagonal is for two tasks on one resource: 2 means that one link is
  /// one link.
  std::array<std::array<double, kNumResources>, kNumResources> factors = {
      {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}}};

  [[nodiscard]] double factor(Resource victim, Resource other) const {
    return factors[index_of(victim)][index_of(other)];
  }
  void set(Resource victim, Resource other, double factor) {
    factors[index_of(victim)][index_of(other)] = factor;
  }
  /// True if different resources do not slow each other.
  [[nodiscard]] bool is_free() const;

  bool operator==(const Contention&) const = default;
};

/// Inter-node and intra-node links slow each other by 1 + `links` and compute and links by
/// 1 + `compute_links`: what the study of bench/schedule_simulated varies. kBadInput below 0.
Contention uniform_contention(double links, double compute_links = 0);

/// Two tasks timed alone and then together, started at the same moment. Seconds.
struct PairMeasurement {
  double alone_a_s = 0;
  double alone_b_s = 0;
  double end_a_s = 0;  ///< when a ended, in the run with b
  double end_b_s = 0;  ///< when b ended, in the run with a
};

struct PairSlowDown {
  double a = 1;  ///< factor of a while b runs
  double b = 1;  ///< factor of b while a runs

  bool operator==(const PairSlowDown&) const = default;
};

/// The factors that explain a measurement: the task that ended first was slowed all the time, the
/// other only until then. Factors below 1 (noise) become 1. kBadInput for times that are not
/// positive.
PairSlowDown slow_down_of(const PairMeasurement& measurement);

Json to_json(const Contention& contention);
/// Reads what to_json wrote; factors in [1, 1000]. kBadInput names the place.
Contention contention_from(const JsonReader& reader);

}  // namespace coterie::cost
