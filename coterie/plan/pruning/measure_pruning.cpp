// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/measure_pruning.hpp"

#include <algorithm>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/plan/pruning/device_limit.hpp"

namespace coterie::pruning {
namespace {

/// A row of a trace as picks, by descending weight.
class RowPicks {
 public:
  explicit RowPicks(const routing::LayerTrace& layer)
      : layer_(layer),
        ids_(static_cast<std::size_t>(layer.top_k)),
        scores_(static_cast<std::size_t>(layer.top_k)) {}

  Picks read(std::size_t row, std::int32_t num_experts) {
    const auto width = static_cast<std::size_t>(layer_.top_k);
    order_.clear();
    for (std::size_t i = 0; i < width; ++i) {
      const std::uint16_t id = layer_.row(row)[i];
      if (id != routing::kNoExpert) {
        COTERIE_REQUIRE(id < num_experts, "layer ", layer_.layer, ", row ", row, ": expert ", id,
                        ", but the placement has ", num_experts, " experts");
        order_.emplace_back(-layer_.weights[row * width + i], id);
      }
    }
    std::sort(order_.begin(), order_.end());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      scores_[i] = -order_[i].first;
      ids_[i] = order_[i].second;
    }
    return {std::span(ids_).first(order_.size()), std::span(scores_).first(order_.size())};
  }

 private:
  const routing::LayerTrace& layer_;
  std::vector<std::pair<float, std::int32_t>> order_;
  std::vector<std::int32_t> ids_;
  std::vector<float> scores_;
};

void check_weights(const routing::LayerTrace& layer) {
  COTERIE_REQUIRE(!layer.counts && !layer.weights.empty(), "layer ", layer.layer,
                  ": the trace holds no routing weights, which pruning chooses by");
}

}  // namespace

PruningFigures measure_pruning(const routing::LayerTrace& layer,
                               const placement::LayerPlacement& placement,
                               const PruningOptions& options, const Budget& budget) {
  check_weights(layer);
  const DeviceLimit limit(placement, options.device_choice, budget);
  const placement::ReplicaChooser chooser(placement);
  RowPicks row_picks(layer);
  PruningFigures figures;
  figures.tokens_of_count.resize(static_cast<std::size_t>(placement.num_devices()) + 1);
  std::vector<std::int32_t> homes;
  for (const std::uint32_t row : routing::select_rows(layer, {})) {
    const Picks picks = row_picks.read(row, placement.num_experts);
    if (picks.ids.empty()) {
      continue;
    }
    homes.resize(picks.ids.size());
    chooser.choose(picks.ids, homes);
    const auto before = std::set<std::int32_t>(homes.begin(), homes.end()).size();
    const std::vector<std::int32_t> devices = limit.choose(picks);
    double routed = 0;
    for (std::size_t i = 0; i < picks.ids.size(); ++i) {
      routed += static_cast<double>(picks.scores[i]);
      figures.replaced_picks += limit.is_on(picks.ids[i], devices) ? 0 : 1;
    }
    const std::size_t after = std::min(before, devices.size());
    ++figures.num_tokens;
    ++figures.tokens_of_count[after];
    figures.replicas_before += static_cast<double>(before);
    figures.replicas_after += static_cast<double>(after);
    figures.limited_share += after < before ? 1 : 0;
    figures.kept_mass += routed > 0 ? limit.kept_mass(picks, devices) / routed : 1;
  }
  if (figures.num_tokens > 0) {
    for (double* mean : {&figures.replicas_before, &figures.replicas_after, &figures.limited_share,
                         &figures.kept_mass, &figures.replaced_picks}) {
      *mean /= static_cast<double>(figures.num_tokens);
    }
  }
  return figures;
}

void add_layer(ThresholdFit& fit, const routing::LayerTrace& layer,
               const placement::LayerPlacement& placement, const Budget& bounds) {
  check_weights(layer);
  const DeviceLimit limit(placement, DeviceChoice::kKeptMass, bounds);
  RowPicks row_picks(layer);
  for (const std::uint32_t row : routing::select_rows(layer, {})) {
    if (const Picks picks = row_picks.read(row, placement.num_experts); !picks.ids.empty()) {
      fit.add(limit, picks);
    }
  }
}

}  // namespace coterie::pruning
