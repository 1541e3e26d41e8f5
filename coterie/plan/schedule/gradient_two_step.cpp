// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/plan/schedule/differential_evolution.hpp"
#include "coterie/plan/schedule/gradient_partition.hpp"

namespace coterie::schedule {
namespace {

/// Step 1 (equations 3 and 4): each window takes what it hides of what is there.
GradientPartition fill_windows(std::span<const GradientLayer> layers,
                               const cost::CostModel& all_reduce) {
  GradientPartition partition;
  double pool = 0;
  for (const GradientLayer& layer : layers) {
    const double dense = std::min(pool, all_reduce.size_in(layer.dense_window_s));
    const double moe =
        pool - dense > 0 ? std::min(pool - dense, all_reduce.size_in(moe_window_s(layer))) : 0;
    pool += layer.bytes - dense - moe;
    partition.dense_bytes.push_back(dense);
    partition.moe_bytes.push_back(moe);
  }
  partition.last_bytes = pool;
  return partition;
}

/// A point in [0, 1] per layer: which share of the bytes left over so far its MoE part takes beyond
/// its window. So every point keeps the prefix sums of equation 5.
GradientPartition with_extra(std::span<const GradientLayer> layers, const GradientPartition& base,
                             std::span<const double> shares) {
  GradientPartition partition = base;
  double pool = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    pool -= base.dense_bytes[i] + base.moe_bytes[i];
    const double extra = std::max(0.0, pool) * shares[i];
    partition.moe_bytes[i] += extra;
    pool += layers[i].bytes - extra;
  }
  partition.last_bytes = std::max(0.0, pool);
  return partition;
}

/// Taking a share of the pool at layer i must leave step 1's pieces of later layers their bytes.
bool is_feasible(std::span<const GradientLayer> layers, const GradientPartition& partition) {
  double pool = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (partition.dense_bytes[i] + partition.moe_bytes[i] > pool * (1 + 1e-12) + 1e-6) {
      return false;
    }
    pool += layers[i].bytes - partition.dense_bytes[i] - partition.moe_bytes[i];
  }
  return true;
}

}  // namespace

GradientPartition partition_two_step(std::span<const GradientLayer> layers,
                                     const cost::CostModel& all_reduce, std::uint64_t seed) {
  GradientPartition base = fill_windows(layers, all_reduce);
  base.exposed_s = exposed_s(layers, base, all_reduce);
  if (layers.size() < 2 || base.exposed_s <= 0) {
    return base;
  }
  const auto cost = [&](std::span<const double> shares) {
    const GradientPartition tried = with_extra(layers, base, shares);
    return is_feasible(layers, tried) ? exposed_s(layers, tried, all_reduce) : 2 * base.exposed_s;
  };
  EvolutionOptions options;
  options.seed = seed;
  const auto shares = minimise_by_evolution(cost, std::vector<double>(layers.size(), 0.0), options);
  GradientPartition best = with_extra(layers, base, shares);
  best.exposed_s = exposed_s(layers, best, all_reduce);
  return best.exposed_s < base.exposed_s ? best : base;
}

}  // namespace coterie::schedule
