// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/drift.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/placement/measure.hpp"

namespace coterie::placement {
namespace {

/// Adds a row's weights (1 a pick without weights) to [E].
void add_row(const routing::LayerTrace& layer, std::size_t row, bool use_weights,
             std::vector<double>& sums) {
  const auto width = static_cast<std::size_t>(layer.top_k);
  const auto ids = layer.row(row);
  for (std::size_t i = 0; i < width; ++i) {
    if (ids[i] != routing::kNoExpert) {
      sums.at(ids[i]) += use_weights ? static_cast<double>(layer.weights[row * width + i]) : 1.0;
    }
  }
}

/// Picks that both rows have over picks of `a`.
double shared_picks(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b) {
  std::size_t count = 0;
  std::size_t shared = 0;
  for (const std::uint16_t id : a) {
    if (id != routing::kNoExpert) {
      ++count;
      shared += std::ranges::find(b, id) != b.end() ? 1 : 0;
    }
  }
  return count > 0 ? static_cast<double>(shared) / static_cast<double>(count) : 1.0;
}

void check_pair(const routing::LayerTrace& before, const routing::LayerTrace& after) {
  COTERIE_REQUIRE(before.layer == after.layer && before.num_experts == after.num_experts &&
                      before.top_k == after.top_k,
                  "layer ", before.layer, " with ", before.top_k, " of ", before.num_experts,
                  " experts is compared with layer ", after.layer, " with ", after.top_k, " of ",
                  after.num_experts);
  COTERIE_REQUIRE(before.num_rows() == after.num_rows() && before.num_rows() > 0, "layer ",
                  before.layer, ": the traces have ", before.num_rows(), " and ", after.num_rows(),
                  " rows; record the same text with both models");
}

}  // namespace

double jensen_shannon_distance(const std::vector<double>& a, const std::vector<double>& b) {
  COTERIE_CHECK(a.size() == b.size(), a.size(), b.size());
  const double sum_a = std::accumulate(a.begin(), a.end(), 0.0);
  const double sum_b = std::accumulate(b.begin(), b.end(), 0.0);
  if (sum_a <= 0 || sum_b <= 0) {
    return 0;
  }
  double divergence = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double p = a[i] / sum_a;
    const double q = b[i] / sum_b;
    const double mean = (p + q) / 2;
    divergence += p > 0 ? p * std::log2(p / mean) / 2 : 0;
    divergence += q > 0 ? q * std::log2(q / mean) / 2 : 0;
  }
  return std::sqrt(std::clamp(divergence, 0.0, 1.0));
}

LayerDrift measure_drift(const routing::LayerTrace& before, const routing::LayerTrace& after,
                         const LayerPlacement& placement) {
  check_pair(before, after);
  const auto num_experts = static_cast<std::size_t>(before.num_experts);
  const bool has_weights = !before.weights.empty() && !after.weights.empty();
  std::vector<double> load_before(num_experts);
  std::vector<double> load_after(num_experts);
  LayerDrift drift;
  drift.layer = before.layer;
  drift.num_tokens = before.num_rows();
  for (std::size_t row = 0; row < before.num_rows(); ++row) {
    add_row(before, row, false, load_before);
    add_row(after, row, false, load_after);
    drift.same_picks += shared_picks(before.row(row), after.row(row));
    if (has_weights) {
      std::vector<double> a(num_experts);
      std::vector<double> b(num_experts);
      add_row(before, row, true, a);
      add_row(after, row, true, b);
      drift.token_distance += jensen_shannon_distance(a, b);
    }
  }
  const auto count = static_cast<double>(before.num_rows());
  drift.same_picks /= count;
  drift.token_distance /= count;
  drift.load_distance = jensen_shannon_distance(load_before, load_after);
  const LayerFigures old_figures = measure_placement(placement, routing::select_sets(before));
  const LayerFigures new_figures = measure_placement(placement, routing::select_sets(after));
  drift.replicas_before = old_figures.replicas;
  drift.replicas_after = new_figures.replicas;
  drift.load_imbalance_before = old_figures.load_imbalance;
  drift.load_imbalance_after = new_figures.load_imbalance;
  return drift;
}

std::int64_t count_moved(const LayerPlacement& from, const LayerPlacement& to) {
  COTERIE_REQUIRE(from.num_experts == to.num_experts && from.num_devices() == to.num_devices(),
                  "placements of ", from.num_experts, " experts on ", from.num_devices(),
                  " devices and of ", to.num_experts, " on ", to.num_devices());
  std::int64_t count = 0;
  for (std::size_t d = 0; d < to.experts_of_device.size(); ++d) {
    for (const std::int32_t expert : to.experts_of_device[d]) {
      count += std::ranges::binary_search(from.experts_of_device[d], expert) ? 0 : 1;
    }
  }
  return count;
}

MoveEstimate estimate_move(const std::vector<PlacementPair>& layers, const MoveCosts& costs) {
  MoveEstimate estimate;
  if (layers.empty()) {
    return estimate;
  }
  for (const PlacementPair& layer : layers) {
    estimate.num_moved += count_moved(*layer.from, *layer.to);
    estimate.replicas_old += layer.replicas_from;
    estimate.replicas_new += layer.replicas_to;
  }
  estimate.bytes_saved_per_token =
      (estimate.replicas_old - estimate.replicas_new) * costs.row_bytes;
  const auto count = static_cast<double>(layers.size());
  estimate.replicas_old /= count;
  estimate.replicas_new /= count;
  estimate.bytes_moved = static_cast<double>(estimate.num_moved) * costs.expert_bytes;
  if (estimate.bytes_saved_per_token > 0) {
    estimate.break_even_tokens = estimate.bytes_moved / estimate.bytes_saved_per_token;
    estimate.worth_it = estimate.num_moved > 0 && estimate.break_even_tokens < costs.horizon_tokens;
  }
  return estimate;
}

Json to_json(const LayerDrift& drift) {
  return {{"layer", drift.layer},
          {"tokens", drift.num_tokens},
          {"load_distance", drift.load_distance},
          {"token_distance", drift.token_distance},
          {"same_picks", drift.same_picks},
          {"replicas_before", drift.replicas_before},
          {"replicas_after", drift.replicas_after},
          {"load_imbalance_before", drift.load_imbalance_before},
          {"load_imbalance_after", drift.load_imbalance_after}};
}

Json to_json(const MoveEstimate& estimate) {
  return {{"replicas_old", estimate.replicas_old},
          {"replicas_new", estimate.replicas_new},
          {"experts_moved", estimate.num_moved},
          {"bytes_moved", estimate.bytes_moved},
          {"bytes_saved_per_token", estimate.bytes_saved_per_token},
          {"break_even_tokens", estimate.break_even_tokens},
          {"worth_it", estimate.worth_it}};
}

}  // namespace coterie::placement
