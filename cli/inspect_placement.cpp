// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "cli/inspect.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/placement/placement.hpp"

namespace coterie::cli {
namespace {

Json to_json(const placement::LayerFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas", figures.replicas},
          {"bottleneck_replicas", figures.bottleneck_replicas},
          {"load_imbalance", figures.load_imbalance},
          {"receive_imbalance", figures.receive_imbalance}};
}

std::string figures_text(const std::optional<placement::LayerFigures>& figures) {
  if (!figures) {
    return "      -      -";
  }
  char text[64];
  std::snprintf(text, sizeof(text), " %6.3f %6.2f", figures->replicas, figures->load_imbalance);
  return text;
}

}  // namespace

Inspection inspect_placement(const std::filesystem::path& path) {
  const placement::Placement placement = placement::read_placement(path);
  Inspection found;
  Json layers = Json::array();
  std::string table = "  layer experts slots  device slots      C_T   load | held out   load\n";
  for (const placement::PlacedLayer& layer : placement.layers) {
    std::size_t least = layer.placement.experts_of_device.front().size();
    std::size_t most = 0;
    for (const auto& experts : layer.placement.experts_of_device) {
      least = std::min(least, experts.size());
      most = std::max(most, experts.size());
    }
    Json entry = {{"layer", layer.layer},
                  {"num_experts", layer.placement.num_experts},
                  {"num_slots", layer.placement.num_slots()},
                  {"slots_of_device", {{"least", least}, {"most", most}}},
                  {"fit", layer.fit ? to_json(*layer.fit) : Json()},
                  {"held_out", layer.held_out ? to_json(*layer.held_out) : Json()}};
    layers.push_back(std::move(entry));
    char row[96];
    std::snprintf(row, sizeof(row), "  %5d %7d %5d %6zu to %-4zu", layer.layer,
                  layer.placement.num_experts, layer.placement.num_slots(), least, most);
    table += row + figures_text(layer.fit) + " |  " + figures_text(layer.held_out) + "\n";
  }
  const placement::PlacementOptions& options = placement.options;
  found.document = {{"kind", "placement"},
                    {"path", path.string()},
                    {"algorithm", placement.algorithm},
                    {"num_devices", options.num_devices},
                    {"num_nodes", options.num_nodes},
                    {"num_redundant_experts", options.num_redundant_experts},
                    {"load_cap", options.load_cap ? Json(*options.load_cap) : Json()},
                    {"objective", placement::name_of(options.objective)},
                    {"seed", options.seed},
                    {"model_fingerprint", placement.model_fingerprint},
                    {"trace_fingerprint", placement.trace_fingerprint},
                    {"layers", std::move(layers)}};
  const auto known = [](const std::string& text) { return text.empty() ? "not known" : text; };
  found.text =
      list_facts("placement " + path.string(),
                 {{"algorithm", placement.algorithm},
                  {"devices", join_message(options.num_devices, " in ", options.num_nodes,
                                           options.num_nodes == 1 ? " node" : " nodes")},
                  {"redundant experts", join_message(options.num_redundant_experts, " a layer")},
                  {"load cap", options.load_cap ? join_message(*options.load_cap) : "none"},
                  {"objective", std::string(placement::name_of(options.objective))},
                  {"model", known(placement.model_fingerprint)},
                  {"trace", known(placement.trace_fingerprint)}}) +
      table;
  return found;
}

}  // namespace coterie::cli
