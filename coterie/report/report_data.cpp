// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/report_data.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::report {
namespace {

Json to_json(const Measured& measured) {
  const placement::LayerFigures& figures = measured.figures;
  return Json{{"replicas_per_token", figures.replicas},
              {"bottleneck_replicas", figures.bottleneck_replicas},
              {"load_imbalance", figures.load_imbalance},
              {"receive_imbalance", figures.receive_imbalance},
              {"bytes_sent", measured.bytes_sent}};
}

Json to_json(const RunCheck& run) {
  return Json{{"num_processes", run.num_processes}, {"num_tokens", run.num_tokens},
              {"bytes_sent", run.bytes_sent},       {"bytes_predicted", run.bytes_predicted},
              {"bit_equal", run.bit_equal},         {"max_difference", run.max_difference},
              {"num_flips", run.num_flips}};
}

Json placement_json(const ReportData& data, const PlacementReport& placement) {
  Json json{{"name", placement.name}, {"label", placement.label}};
  for (std::size_t t = 0; t < data.texts.size(); ++t) {
    json["in_all"][data.texts[t].name] = to_json(summarise(placement, t));
  }
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    Json layer{{"layer", data.layers[l].layer}};
    for (std::size_t t = 0; t < data.texts.size(); ++t) {
      layer["texts"][data.texts[t].name] = to_json(placement.measured[l][t]);
    }
    json["layers"].push_back(layer);
  }
  json["run"] = placement.run ? to_json(*placement.run) : Json();
  return json;
}

}  // namespace

const char* name_of(TextRole role) {
  switch (role) {
    case TextRole::kFit: return "fit";
    case TextRole::kHeldOut: return "held_out";
    case TextRole::kOtherDomain: return "other_domain";
  }
  return "";
}

Json to_json(const Summary& summary) {
  return Json{{"replicas_per_token", summary.replicas},
              {"bottleneck_replicas", summary.bottleneck_replicas},
              {"load_imbalance", summary.load_imbalance},
              {"worst_load_imbalance", summary.worst_load_imbalance},
              {"receive_imbalance", summary.receive_imbalance},
              {"bytes_sent", summary.bytes_sent}};
}

Json to_json(const ReportData& data) {
  check_report(data);
  Json json{{"title", data.title},
            {"num_devices", data.num_devices},
            {"num_experts", data.num_experts},
            {"top_k", data.top_k},
            {"load_cap", data.load_cap ? Json(*data.load_cap) : Json()},
            {"baseline", data.baseline},
            {"chosen", data.chosen}};
  for (const TextSample& text : data.texts) {
    json["texts"].push_back(
        {{"name", text.name}, {"role", name_of(text.role)}, {"num_tokens", text.num_tokens}});
  }
  json["bounds"]["in_all"] = routing::to_json(mean_bounds(data));
  for (const LayerReport& layer : data.layers) {
    Json bounds = routing::to_json(layer.bounds);
    bounds["layer"] = layer.layer;
    json["bounds"]["layers"].push_back(bounds);
  }
  for (const PlacementReport& placement : data.placements) {
    json["placements"].push_back(placement_json(data, placement));
  }
  json["provenance"] = Json::object();
  for (const auto& [what, value] : data.provenance) {
    json["provenance"][what] = value;
  }
  json["notes"] = data.notes;
  return json;
}

void check_report(const ReportData& data) {
  COTERIE_CHECK(!data.texts.empty() && !data.layers.empty(), "a report without text or layer");
  for (const LayerReport& layer : data.layers) {
    COTERIE_CHECK(layer.pairs.rows() == static_cast<std::size_t>(data.num_experts) &&
                      layer.pairs.columns() == layer.pairs.rows(),
                  "layer ", layer.layer, ": pair counts of ", layer.pairs.rows(), " experts");
  }
  for (const PlacementReport& placement : data.placements) {
    COTERIE_CHECK(placement.layers.size() == data.layers.size() &&
                      placement.measured.size() == data.layers.size(),
                  placement.name, ": ", placement.layers.size(), " layers placed, ",
                  placement.measured.size(), " measured, of ", data.layers.size());
    for (const auto& texts : placement.measured) {
      COTERIE_CHECK(texts.size() == data.texts.size(), placement.name, ": ", texts.size(),
                    " texts measured of ", data.texts.size());
    }
  }
  placement_named(data, data.baseline);
  placement_named(data, data.chosen);
}

Summary summarise(const PlacementReport& placement, std::size_t text) {
  Summary summary;
  for (const auto& texts : placement.measured) {
    const Measured& measured = texts.at(text);
    summary.replicas += measured.figures.replicas;
    summary.bottleneck_replicas += measured.figures.bottleneck_replicas;
    summary.load_imbalance += measured.figures.load_imbalance;
    summary.receive_imbalance += measured.figures.receive_imbalance;
    summary.worst_load_imbalance =
        std::max(summary.worst_load_imbalance, measured.figures.load_imbalance);
    summary.bytes_sent += measured.bytes_sent;
  }
  const double layers = std::max<double>(1, static_cast<double>(placement.measured.size()));
  for (double Summary::*mean : {&Summary::replicas, &Summary::bottleneck_replicas,
                                &Summary::load_imbalance, &Summary::receive_imbalance}) {
    summary.*mean /= layers;
  }
  return summary;
}

routing::ReplicaBounds mean_bounds(const ReportData& data) {
  routing::ReplicaBounds mean;
  for (const LayerReport& layer : data.layers) {
    for (double routing::ReplicaBounds::*bound :
         {&routing::ReplicaBounds::random, &routing::ReplicaBounds::trivial,
          &routing::ReplicaBounds::star, &routing::ReplicaBounds::upper}) {
      mean.*bound += layer.bounds.*bound / static_cast<double>(data.layers.size());
    }
  }
  return mean;
}

std::size_t headline_text(const ReportData& data) {
  const auto held_out = std::find_if(data.texts.begin(), data.texts.end(), [](const auto& text) {
    return text.role == TextRole::kHeldOut;
  });
  return held_out == data.texts.end() ? 0 : static_cast<std::size_t>(held_out - data.texts.begin());
}

const PlacementReport& placement_named(const ReportData& data, const std::string& name) {
  const auto found = std::find_if(data.placements.begin(), data.placements.end(),
                                  [&](const auto& placement) { return placement.name == name; });
  COTERIE_CHECK(found != data.placements.end(), "no placement is called ", name);
  return *found;
}

}  // namespace coterie::report
