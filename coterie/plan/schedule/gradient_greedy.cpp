// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "coterie/plan/schedule/gradient_partition.hpp"

namespace coterie::schedule {
namespace {

/// States kept a layer; real models need a handful.
constexpr std::size_t kMostStates = 64;

/// What has been decided up to some layer.
struct State {
  double pool = 0;  ///< bytes that are ready and not sent
  double exposed_s = 0;
  std::size_t before = 0;  ///< state of the layer before
  double dense = 0;
  double moe = 0;
};

/// Nothing, what the window hides, or all that is ready. Costs are straight lines between these,
/// so nothing between them is better.
std::array<double, 3> choices(double pool, double window_bytes) {
  return {std::min(pool, window_bytes), pool, 0};
}

/// Fewest bytes first; a state is dropped if another has fewer bytes left and exposes no more.
std::vector<State> undominated(std::vector<State> states) {
  std::ranges::stable_sort(states, [](const State& a, const State& b) {
    return std::pair(a.pool, a.exposed_s) < std::pair(b.pool, b.exposed_s);
  });
  std::vector<State> kept;
  for (const State& state : states) {
    if (kept.empty() || state.exposed_s < kept.back().exposed_s - 1e-15) {
      kept.push_back(state);
    }
  }
  if (kept.size() > kMostStates) {  // keep both ends: least left, least exposed
    kept.erase(kept.begin() + kMostStates / 2, kept.end() - kMostStates / 2);
  }
  return kept;
}

std::vector<State> after_layer(const std::vector<State>& states, const GradientLayer& layer,
                               const cost::CostModel& all_reduce) {
  const bool any = std::ranges::any_of(states, [](const State& s) { return s.pool > 0; });
  const double moe_window = any ? all_reduce.size_in(moe_window_s(layer)) : 0;
  const double dense_window = all_reduce.size_in(layer.dense_window_s);
  const double bare_s = any ? layer.moe_s(0) : 0;
  std::vector<State> next;
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (const double dense : choices(states[i].pool, dense_window)) {
      for (const double moe : choices(states[i].pool - dense, moe_window)) {
        const double dense_s = std::max(0.0, all_reduce.time_s(dense) - layer.dense_window_s);
        const double moe_s = moe > 0 ? layer.moe_s(all_reduce.time_s(moe)) - bare_s : 0;
        next.push_back({states[i].pool - dense - moe + layer.bytes,
                        states[i].exposed_s + dense_s + moe_s, i, dense, moe});
      }
    }
  }
  return undominated(std::move(next));
}

}  // namespace

/// Dense windows, MoE windows, remainder, in that order of preference, but exact where latencies
/// make the greedy choice wrong: a dynamic program over the bytes left, in which each window is
/// left empty, filled, or takes everything.
GradientPartition partition_greedy(std::span<const GradientLayer> layers,
                                   const cost::CostModel& all_reduce) {
  std::vector<std::vector<State>> states = {{State{}}};
  for (const GradientLayer& layer : layers) {
    states.push_back(after_layer(states.back(), layer, all_reduce));
  }
  const auto last = std::ranges::min_element(states.back(), {}, [&](const State& state) {
    return state.exposed_s + all_reduce.time_s(state.pool);
  });
  GradientPartition partition;
  partition.dense_bytes.resize(layers.size());
  partition.moe_bytes.resize(layers.size());
  partition.last_bytes = last->pool;
  State state = *last;
  for (std::size_t i = layers.size(); i-- > 0;) {
    partition.dense_bytes[i] = state.dense;
    partition.moe_bytes[i] = state.moe;
    state = states[i][state.before];
  }
  partition.exposed_s = exposed_s(layers, partition, all_reduce);
  return partition;
}

}  // namespace coterie::schedule
