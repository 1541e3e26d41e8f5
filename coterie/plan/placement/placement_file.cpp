// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/placement_file.hpp"

#include <algorithm>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"

namespace coterie::placement {
namespace {

constexpr const char* kFormat = "coterie-placement";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxExperts = 65534;
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

Json json_of(const LayerFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas", figures.replicas},
          {"bottleneck_replicas", figures.bottleneck_replicas},
          {"load_imbalance", figures.load_imbalance},
          {"receive_imbalance", figures.receive_imbalance}};
}

LayerFigures figures_from(const JsonReader& reader) {
  LayerFigures figures;
  figures.num_tokens = static_cast<std::uint64_t>(reader.at("num_tokens").as_int(0));
  figures.replicas = reader.at("replicas").as_double();
  figures.bottleneck_replicas = reader.at("bottleneck_replicas").as_double();
  figures.load_imbalance = reader.at("load_imbalance").as_double();
  figures.receive_imbalance = reader.at("receive_imbalance").as_double();
  return figures;
}

Json json_of(const PlacementOptions& options) {
  return {{"num_devices", options.num_devices},
          {"num_nodes", options.num_nodes},
          {"num_redundant_experts", options.num_redundant_experts},
          {"load_cap", options.load_cap ? Json(*options.load_cap) : Json()},
          {"objective", name_of(options.objective)},
          {"seed", options.seed},
          {"num_starts", options.num_starts},
          {"sample_sets", options.sample_sets}};
}

PlacementOptions options_from(const JsonReader& reader) {
  PlacementOptions options;
  const auto whole = [&](const char* key, std::int64_t low, std::int64_t high) {
    return reader.at(key).as_int(low, high);
  };
  options.num_devices = static_cast<std::int32_t>(whole("num_devices", 1, kMaxExperts));
  options.num_nodes = static_cast<std::int32_t>(whole("num_nodes", 1, options.num_devices));
  options.num_redundant_experts =
      static_cast<std::int32_t>(whole("num_redundant_experts", 0, kMaxInt));
  const JsonReader cap = reader.at("load_cap");
  options.load_cap.reset();
  if (!cap.value().is_null()) {
    options.load_cap = cap.as_double();
  }
  const JsonReader objective = reader.at("objective");
  if (objective.as_string() == name_of(Objective::kBottleneck)) {
    options.objective = Objective::kBottleneck;
  } else if (objective.as_string() != name_of(Objective::kMean)) {
    objective.refuse("\"mean\" or \"bottleneck\"");
  }
  const JsonReader seed = reader.at("seed");
  if (!seed.value().is_number_unsigned()) {
    seed.refuse("a whole number, at least 0");
  }
  options.seed = seed.value().get<std::uint64_t>();
  options.num_starts = static_cast<std::int32_t>(whole("num_starts", 1, kMaxInt));
  options.sample_sets = static_cast<std::size_t>(whole("sample_sets", 1, INT64_MAX));
  return options;
}

/// Cuts one layer's slot list at the device offsets and checks every expert in it.
LayerPlacement layer_from(const JsonReader& slots, const JsonReader& offsets,
                          std::int32_t num_experts) {
  LayerPlacement placement;
  placement.num_experts = num_experts;
  const auto ids = slots.as_ints(0, num_experts - 1);
  const auto cuts = offsets.as_ints(0, static_cast<std::int64_t>(ids.size()));
  for (std::size_t d = 0; d + 1 < cuts.size(); ++d) {
    if (cuts[d + 1] <= cuts[d]) {
      offsets.at(d + 1).refuse("more than the offset before it (every device holds an expert)");
    }
    auto& experts = placement.experts_of_device.emplace_back();
    for (std::int64_t slot = cuts[d]; slot < cuts[d + 1]; ++slot) {
      const auto id = static_cast<std::int32_t>(ids[static_cast<std::size_t>(slot)]);
      if (!experts.empty() && id <= experts.back()) {
        slots.at(static_cast<std::size_t>(slot))
            .refuse("experts of device " + std::to_string(d) + " to ascend, none twice");
      }
      experts.push_back(id);
    }
  }
  if (cuts.front() != 0 || static_cast<std::size_t>(cuts.back()) != ids.size()) {
    offsets.refuse("offsets from 0 to the " + std::to_string(ids.size()) + " slots of the layer");
  }
  return placement;
}

std::vector<Json> maps_of(const Placement& placement) {
  Json slots = Json::array();
  Json offsets = Json::array();
  Json prices = Json::array();
  for (const PlacedLayer& layer : placement.layers) {
    slots.push_back(layer.placement.physical_to_logical());
    Json& cuts = offsets.emplace_back(Json::array({0}));
    for (const auto& experts : layer.placement.experts_of_device) {
      cuts.push_back(cuts.back().get<std::int64_t>() + static_cast<std::int64_t>(experts.size()));
    }
    prices.push_back(layer.placement.device_prices);
  }
  return {slots, offsets, prices};
}

Json figures_json(const Placement& placement) {
  Json all = Json::array();
  for (const PlacedLayer& layer : placement.layers) {
    Json one = {{"layer", layer.layer}};
    if (layer.fit) {
      one["fit"] = json_of(*layer.fit);
    }
    if (layer.held_out) {
      one["held_out"] = json_of(*layer.held_out);
    }
    all.push_back(std::move(one));
  }
  return all;
}

void check_placement(const Placement& placement, const std::string& where) {
  COTERIE_REQUIRE(!placement.layers.empty(), where, ": no layer is placed");
  COTERIE_REQUIRE(placement.num_devices() % placement.options.num_nodes == 0, where, ": ",
                  placement.num_devices(), " devices do not divide among ",
                  placement.options.num_nodes, " nodes");
  std::int32_t previous = -1;
  for (const PlacedLayer& layer : placement.layers) {
    const std::string place = where + ": layer " + std::to_string(layer.layer);
    COTERIE_REQUIRE(layer.layer > previous, place, ": layers do not ascend");
    previous = layer.layer;
    check_layer_placement(layer.placement, place);
    COTERIE_REQUIRE(layer.placement.num_devices() == placement.num_devices(), place, ": ",
                    layer.placement.num_devices(), " devices instead of ", placement.num_devices());
    COTERIE_REQUIRE(layer.placement.num_experts == placement.layers[0].placement.num_experts, place,
                    ": ", layer.placement.num_experts, " experts instead of ",
                    placement.layers[0].placement.num_experts);
  }
}

/// Layer i of the file.
PlacedLayer read_layer(const JsonReader& file, std::size_t i, std::int32_t num_experts,
                       std::int32_t num_devices) {
  PlacedLayer layer;
  layer.layer = static_cast<std::int32_t>(file.at("layers").at(i).as_int(0, kMaxInt));
  const JsonReader offsets = file.at("device_slot_offsets").at(i);
  if (offsets.size() != static_cast<std::size_t>(num_devices) + 1) {
    offsets.refuse(std::to_string(num_devices + 1) + " offsets for " + std::to_string(num_devices) +
                   " devices");
  }
  layer.placement = layer_from(file.at("physical_to_logical_map").at(i), offsets, num_experts);
  if (file.has("device_prices")) {
    const JsonReader prices = file.at("device_prices").at(i);
    const auto values = prices.as_ints(0, std::numeric_limits<std::uint32_t>::max());
    if (!values.empty() && values.size() != static_cast<std::size_t>(num_devices)) {
      prices.refuse("no price or one a device");
    }
    layer.placement.device_prices.assign(values.begin(), values.end());
  }
  if (file.has("figures")) {
    const JsonReader figures = file.at("figures").at(i);
    if (figures.has("fit")) {
      layer.fit = figures_from(figures.at("fit"));
    }
    if (figures.has("held_out")) {
      layer.held_out = figures_from(figures.at("held_out"));
    }
  }
  return layer;
}

}  // namespace

const LayerPlacement* Placement::find(std::int32_t layer) const {
  const auto found = std::ranges::find(layers, layer, &PlacedLayer::layer);
  return found == layers.end() ? nullptr : &found->placement;
}

Placement contiguous_placement_of(const std::vector<std::int32_t>& layers, std::int32_t num_experts,
                                  std::int32_t num_devices) {
  Placement placement;
  placement.options.num_devices = num_devices;
  placement.options.load_cap.reset();
  for (const std::int32_t layer : layers) {
    placement.layers.push_back(
        {layer, contiguous_placement(num_experts, num_devices), std::nullopt, std::nullopt});
  }
  return placement;
}

Placement read_placement(const std::filesystem::path& path) {
  const Json document = read_json_file(path);
  const JsonReader file(document, path.string());
  if (file.at("format").as_string() != kFormat) {
    file.at("format").refuse(std::string("\"") + kFormat + "\"");
  }
  if (const auto version = file.at("version").as_int(1); version > kVersion) {
    file.at("version").refuse("version 1: a newer program wrote this file");
  }
  Placement placement;
  placement.algorithm = file.at("algorithm").as_string();
  placement.options = options_from(file.at("options"));
  placement.model_fingerprint = file.at("model_fingerprint").as_string();
  placement.trace_fingerprint = file.at("trace_fingerprint").as_string();
  placement.fit_rows = file.at("fit_rows").as_string();
  const auto num_experts = static_cast<std::int32_t>(file.at("num_experts").as_int(1, kMaxExperts));
  const std::size_t num_layers = file.at("layers").size();
  for (const char* key : {"physical_to_logical_map", "device_slot_offsets"}) {
    if (file.at(key).size() != num_layers) {
      file.at(key).refuse("one entry for each of the " + std::to_string(num_layers) + " layers");
    }
  }
  for (std::size_t i = 0; i < num_layers; ++i) {
    placement.layers.push_back(read_layer(file, i, num_experts, placement.num_devices()));
  }
  check_placement(placement, path.string());
  return placement;
}

std::string format_placement(const Placement& placement) {
  check_placement(placement, "placement");
  std::vector<std::int32_t> layer_numbers;
  for (const PlacedLayer& layer : placement.layers) {
    layer_numbers.push_back(layer.layer);
  }
  auto maps = maps_of(placement);
  const Json file = {{"format", kFormat},
                     {"version", kVersion},
                     {"algorithm", placement.algorithm},
                     {"options", json_of(placement.options)},
                     {"model_fingerprint", placement.model_fingerprint},
                     {"trace_fingerprint", placement.trace_fingerprint},
                     {"fit_rows", placement.fit_rows},
                     {"num_experts", placement.layers[0].placement.num_experts},
                     {"layers", layer_numbers},
                     {"physical_to_logical_map", std::move(maps[0])},
                     {"device_slot_offsets", std::move(maps[1])},
                     {"device_prices", std::move(maps[2])},
                     {"figures", figures_json(placement)}};
  return format_json(file);
}

void write_placement(const std::filesystem::path& path, const Placement& placement) {
  write_text_file(path, format_placement(placement));
}

}  // namespace coterie::placement
