// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/report/report.hpp"

namespace coterie::report {

/// Experts in an order in which neighbours are chosen together.
inline std::vector<std::uint16_t> planted_order(std::int32_t num_experts) {
  const auto experts = static_cast<std::size_t>(num_experts);
  std::vector<std::uint16_t> order(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    order[e] = static_cast<std::uint16_t>(e * 13 % experts);
  }
  return order;
}

/// Tokens that mostly choose from one of four groups of neighbours in planted_order.
inline std::vector<std::uint16_t> grouped_ids(std::int32_t num_experts, std::int32_t top_k,
                                              std::size_t num_tokens, std::uint64_t seed) {
  Random random(seed);
  const auto experts = static_cast<std::uint64_t>(num_experts);
  const std::vector<std::uint16_t> order = planted_order(num_experts);
  std::vector<std::uint16_t> ids;
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const std::uint64_t group = random.below(4);
    std::vector<std::uint16_t> row;
    while (row.size() < static_cast<std::size_t>(top_k)) {
      const bool stays = random.below(4) != 0;
      const std::uint64_t place =
          stays ? group * (experts / 4) + random.below(experts / 4) : random.below(experts);
      const std::uint16_t id = order[place];
      if (std::find(row.begin(), row.end(), id) == row.end()) {
        row.push_back(id);
      }
    }
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return ids;
}

/// The placement that planted_order is made for: no search, so that tests stay quick.
inline placement::LayerPlacement planted_placement(std::int32_t num_experts,
                                                   std::int32_t num_devices) {
  placement::LayerPlacement placement = placement::contiguous_placement(num_experts, num_devices);
  const std::vector<std::uint16_t> order = planted_order(num_experts);
  for (auto& device : placement.experts_of_device) {
    for (std::int32_t& expert : device) {
      expert = order[static_cast<std::size_t>(expert)];
    }
    std::sort(device.begin(), device.end());
  }
  return placement;
}

/// A report whose every figure is really measured, on made-up tokens.
inline ReportData sample_report(std::int32_t num_experts = 16, std::size_t num_layers = 2,
                                std::int32_t num_devices = 4, std::int32_t top_k = 4) {
  ReportData data;
  data.title = "Expert placement of a <small> model";
  data.num_devices = num_devices;
  data.num_experts = num_experts;
  data.top_k = top_k;
  data.load_cap = 1.1;
  data.texts = {{"fitted", TextRole::kFit, 600},
                {"held-out", TextRole::kHeldOut, 400},
                {"code", TextRole::kOtherDomain, 300}};
  data.placements.resize(3);
  const std::vector<std::pair<std::string, std::string>> names = {
      {"contiguous", "contiguous"}, {"occult", "Algorithm 1"}, {"coterie", "ours"}};
  for (std::size_t l = 0; l < num_layers; ++l) {
    std::vector<routing::ExpertSets> sets;
    for (std::size_t t = 0; t < data.texts.size(); ++t) {
      const auto ids = grouped_ids(num_experts, top_k, data.texts[t].num_tokens, 10 * l + t);
      sets.push_back(routing::make_expert_sets(ids, top_k, num_experts));
    }
    LayerReport layer;
    layer.layer = static_cast<std::int32_t>(2 * l + 1);
    layer.bounds =
        routing::replica_bounds(sets[1], routing::even_device_sizes(num_experts, num_devices));
    layer.pairs = routing::count_pairs(sets[0]);
    data.layers.push_back(std::move(layer));
    placement::PlacementOptions options;
    options.num_devices = num_devices;
    for (std::size_t p = 0; p < names.size(); ++p) {
      PlacementReport& report = data.placements[p];
      report.name = names[p].first;
      report.label = names[p].second;
      report.layers.push_back(p == 2 ? planted_placement(num_experts, num_devices)
                                     : placement::place_layer(sets[0], names[p].first, options));
      std::vector<Measured> measured;
      for (const routing::ExpertSets& text : sets) {
        const auto figures = placement::measure_placement(report.layers.back(), text);
        measured.push_back({figures, static_cast<std::uint64_t>(figures.replicas * 1e6)});
      }
      report.measured.push_back(std::move(measured));
    }
  }
  data.placements[0].description = "experts in the order of the checkpoint";
  for (std::size_t p = 0; p < data.placements.size(); ++p) {
    const std::uint64_t bytes = 1234567 + 1000000 * (2 - p);
    data.placements[p].run = RunCheck{4, 512, bytes, bytes, true, 5.5e-8, 0};
  }
  data.provenance = {{"Model", "made up & small"}, {"Seed", "0"}};
  data.notes = {"3 padding rows were left out"};
  return data;
}

}  // namespace coterie::report
