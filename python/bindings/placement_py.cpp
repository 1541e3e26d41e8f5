// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/report/report.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

using placement::LayerFigures;
using placement::LayerPlacement;
using placement::Placement;

const LayerPlacement& layer_of(const Placement& placed, std::int32_t layer) {
  const LayerPlacement* found = placed.find(layer);
  COTERIE_REQUIRE(found != nullptr, "the placement has no layer ", layer);
  return *found;
}

std::vector<std::int32_t> layers_of(const Placement& placed) {
  std::vector<std::int32_t> layers;
  for (const auto& layer : placed.layers) {
    layers.push_back(layer.layer);
  }
  return layers;
}

Placement placement_of_map(
    const std::map<std::int32_t, std::vector<std::vector<std::int32_t>>>& map,
    std::int32_t num_experts, const std::string& model_fingerprint) {
  COTERIE_REQUIRE(!map.empty(), "a placement needs at least one layer");
  Placement placed;
  placed.algorithm = "given";
  placed.model_fingerprint = model_fingerprint;
  placed.options.num_devices = static_cast<std::int32_t>(map.begin()->second.size());
  placed.options.load_cap.reset();
  for (const auto& [layer, devices] : map) {
    LayerPlacement& one = placed.layers.emplace_back().placement;
    placed.layers.back().layer = layer;
    one.num_experts = num_experts;
    one.experts_of_device = devices;
    for (auto& experts : one.experts_of_device) {
      std::ranges::sort(experts);
    }
  }
  placement::format_placement(placed);  // checks it
  return placed;
}

std::string table_of(const Placement& placed) {
  report::TextTable table({"layer", "tokens", "devices a token", "load", "held-out devices"});
  for (const auto& layer : placed.layers) {
    const auto fixed = [](const std::optional<LayerFigures>& figures, double LayerFigures::*value) {
      return figures ? report::fixed((*figures).*value, 3) : std::string("-");
    };
    table.add_row(
        {std::to_string(layer.layer), layer.fit ? std::to_string(layer.fit->num_tokens) : "-",
         fixed(layer.fit, &LayerFigures::replicas), fixed(layer.fit, &LayerFigures::load_imbalance),
         fixed(layer.held_out, &LayerFigures::replicas)});
  }
  return join_message("Placement(", placed.algorithm, ", ", placed.layers.size(), " layers, ",
                      placed.num_devices(), " devices)\n", table.text());
}

Json json_of(const LayerFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas", figures.replicas},
          {"bottleneck_replicas", figures.bottleneck_replicas},
          {"load_imbalance", figures.load_imbalance},
          {"receive_imbalance", figures.receive_imbalance}};
}

/// What `place` has to say beside the placement itself.
Json comparison_of(const placement::PlacedTrace& placed) {
  Json layers = Json::array();
  for (const auto& comparison : placed.comparisons) {
    Json one = {{"layer", comparison.layer},
                {"contiguous", json_of(comparison.contiguous_fit)},
                {"bounds", to_json(comparison.bounds)}};
    if (comparison.contiguous_held_out) {
      one["contiguous_held_out"] = json_of(*comparison.contiguous_held_out);
    }
    layers.push_back(std::move(one));
  }
  return layers;
}

py::tuple place(const routing::Trace& trace, const std::string& algorithm,
                const placement::PlacementOptions& options, const std::string& fit,
                py::object progress) {
  const auto rows = placement::fit_rows_of(fit);
  PythonProgress listener(std::move(progress));
  std::optional<placement::PlacedTrace> placed;
  {
    const py::gil_scoped_release release;
    placed = placement::place_trace(trace, algorithm, options, rows, listener);
  }
  return py::make_tuple(std::move(placed->placement), to_python(comparison_of(*placed)));
}

/// Counted by the independent code of `verify`.
Json count_layer(const placement::VerifiedFile& file, const placement::VerifiedLayer& layer,
                 const routing::LayerTrace& rows, placement::FitRows fit_rows, bool held_out) {
  placement::BruteForceCount count(layer, file.num_devices);
  if (rows.counts) {
    for (std::size_t s = 0; s < rows.counts->num_sets(); ++s) {
      count.add(rows.counts->set(s), rows.counts->tokens[s]);
    }
  } else {
    for (const auto row : routing::select_rows(rows, placement::selection_of(fit_rows, held_out))) {
      count.add(rows.row(row), 1);
    }
  }
  const auto f = count.figures();
  return json_of(
      {f.num_tokens, f.replicas, f.bottleneck_replicas, f.load_imbalance, f.receive_imbalance});
}

void require_equal(const placement::VerifiedFigures& stated, const Json& counted,
                   const std::string& where) {
  const auto close = [&](const char* key, double value) {
    const double found = counted.at(key).get<double>();
    COTERIE_REQUIRE(std::abs(found - value) <= 1e-9 * (1 + std::abs(found)), where, ": \"", key,
                    "\" is stated as ", value, ", counted as ", found);
  };
  close("num_tokens", static_cast<double>(stated.num_tokens));
  close("replicas", stated.replicas);
  close("bottleneck_replicas", stated.bottleneck_replicas);
  close("load_imbalance", stated.load_imbalance);
  close("receive_imbalance", stated.receive_imbalance);
}

Json verify(const std::filesystem::path& path, const routing::Trace* trace,
            std::int32_t num_devices) {
  const auto file = placement::verify_placement_file(path, num_devices);
  Json layers = Json::array();
  for (const auto& layer : file.layers) {
    Json entry = {{"layer", layer.layer}};
    if (trace != nullptr) {
      const auto& numbers = trace->header().layers;
      const auto found = std::ranges::find(numbers, layer.layer);
      const std::string where = path.string() + ": layer " + std::to_string(layer.layer);
      COTERIE_REQUIRE(found != numbers.end(), where, " is not in the trace");
      const auto rows = trace->layer(static_cast<std::size_t>(found - numbers.begin()));
      COTERIE_REQUIRE(rows.num_experts == layer.num_experts, where, " has ", layer.num_experts,
                      " experts, the trace ", rows.num_experts);
      const auto fit_rows = file.kind == "coterie" && !file.fit_rows.empty()
                                ? placement::fit_rows_of(file.fit_rows)
                                : placement::FitRows::kAll;
      entry["fit"] = count_layer(file, layer, rows, fit_rows, false);
      if (layer.stated_fit) {
        require_equal(*layer.stated_fit, entry["fit"], where);
      }
      if (layer.stated_held_out) {
        entry["held_out"] = count_layer(file, layer, rows, fit_rows, true);
        require_equal(*layer.stated_held_out, entry["held_out"], where + " (held-out)");
      }
    }
    layers.push_back(std::move(entry));
  }
  return {{"file", path.string()},
          {"kind", file.kind},
          {"num_devices", file.num_devices},
          {"passed", true},
          {"layers", std::move(layers)}};
}

placement::PlacementOptions options_of(std::int32_t devices, std::int32_t nodes,
                                       std::int32_t redundant, std::optional<double> load_cap,
                                       const std::string& objective, std::uint64_t seed,
                                       std::int32_t num_starts, std::int32_t num_threads) {
  placement::PlacementOptions options;
  options.num_devices = devices;
  options.num_nodes = nodes;
  options.num_redundant_experts = redundant;
  options.load_cap = load_cap;
  COTERIE_REQUIRE(objective == "mean" || objective == "bottleneck", "objective: \"", objective,
                  "\" is neither mean nor bottleneck");
  options.objective =
      objective == "mean" ? placement::Objective::kMean : placement::Objective::kBottleneck;
  options.seed = seed;
  options.num_starts = num_starts;
  options.num_threads = num_threads;
  return options;
}

}  // namespace

void bind_placement(py::module_& module) {
  py::class_<Placement>(module, "Placement")
      .def_property_readonly("num_devices", &Placement::num_devices)
      .def_property_readonly(
          "num_experts", [](const Placement& p) { return p.layers.at(0).placement.num_experts; })
      .def_property_readonly("layers", &layers_of)
      .def_readonly("algorithm", &Placement::algorithm)
      .def_readonly("model_fingerprint", &Placement::model_fingerprint)
      .def(
          "experts_of_device",
          [](const Placement& p, std::int32_t layer) {
            return layer_of(p, layer).experts_of_device;
          },
          py::arg("layer"))
      .def(
          "physical_to_logical",
          [](const Placement& p, std::int32_t layer) {
            return layer_of(p, layer).physical_to_logical();
          },
          py::arg("layer"))
      .def("has_single_copies",
           [](const Placement& p) {
             return std::ranges::all_of(
                 p.layers, [](const auto& layer) { return layer.placement.has_single_copies(); });
           })
      .def(
          "save",
          [](const Placement& p, const std::filesystem::path& path) {
            placement::write_placement(path, p);
          },
          py::arg("path"))
      .def("to_json",
           [](const Placement& p) {
             return to_python(parse_json(placement::format_placement(p), "placement"));
           })
      .def("__eq__", [](const Placement& a, const Placement& b) { return a == b; })
      .def("__repr__", &table_of);
  module.def("read_placement", &placement::read_placement);
  module.def("contiguous_placement", &placement::contiguous_placement_of);
  module.def("placement_of_map", &placement_of_map);
  module.def("place", [](const routing::Trace& trace, const std::string& algorithm,
                         std::int32_t devices, std::int32_t nodes, std::int32_t redundant,
                         std::optional<double> load_cap, const std::string& objective,
                         std::uint64_t seed, std::int32_t num_starts, std::int32_t num_threads,
                         const std::string& fit, py::object progress) {
    return place(
        trace, algorithm,
        options_of(devices, nodes, redundant, load_cap, objective, seed, num_starts, num_threads),
        fit, std::move(progress));
  });
  module.def("algorithms", [] {
    std::vector<std::pair<std::string, std::string>> all;
    for (const auto& algorithm : placement::algorithms()) {
      all.emplace_back(algorithm.name, algorithm.purpose);
    }
    return all;
  });
  module.def("verify",
             [](const std::filesystem::path& path, const routing::Trace* trace,
                std::int32_t num_devices) { return to_python(verify(path, trace, num_devices)); });
}

}  // namespace coterie::python
