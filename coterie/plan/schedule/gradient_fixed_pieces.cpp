// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coterie/plan/schedule/gradient_partition.hpp"

namespace coterie::schedule {
namespace {

/// Bytes of whole pieces that are begun within `window_s`: the last one may overrun it, for pieces
/// are not preempted. Each piece pays the latency again.
double begun_bytes(double pool, double piece_bytes, double window_s,
                   const cost::CostModel& all_reduce, double& time_s) {
  double sent = 0;
  time_s = 0;
  while (pool - sent > 1e-9 * pool && time_s < window_s) {
    const double piece = std::min(piece_bytes, pool - sent);
    sent += piece;
    time_s += all_reduce.time_s(piece);
  }
  return sent;
}

}  // namespace

GradientPartition partition_fixed_pieces(std::span<const GradientLayer> layers,
                                         const cost::CostModel& all_reduce, double piece_bytes) {
  GradientPartition partition;
  double pool = 0;
  for (const GradientLayer& layer : layers) {
    double time_s = 0;
    const double moe =
        pool > 0 ? begun_bytes(pool, piece_bytes, moe_window_s(layer), all_reduce, time_s) : 0;
    partition.exposed_s += moe > 0 ? layer.moe_s(time_s) - layer.moe_s(0) : 0;
    pool -= moe;
    const double dense = begun_bytes(pool, piece_bytes, layer.dense_window_s, all_reduce, time_s);
    partition.exposed_s += std::max(0.0, time_s - layer.dense_window_s);
    pool += layer.bytes - dense;
    partition.moe_bytes.push_back(moe);
    partition.dense_bytes.push_back(dense);
  }
  partition.last_bytes = pool;
  for (double left = pool; left > 0; left -= piece_bytes) {
    partition.exposed_s += all_reduce.time_s(std::min(left, piece_bytes));
  }
  return partition;
}

}  // namespace coterie::schedule
