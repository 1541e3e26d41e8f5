// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/report.hpp"

#include "coterie/base/error.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

/// Placements by name, as they come; the last one is the one recommended.
using Named = std::vector<std::pair<std::string, placement::Placement>>;

report::PlacementReport describe(const std::string& name, const placement::Placement& placed,
                                 const routing::Trace& trace,
                                 const std::vector<routing::Selection>& texts) {
  report::PlacementReport described;
  described.name = described.label = name;
  for (std::size_t slot = 0; slot < trace.header().layers.size(); ++slot) {
    const std::int32_t layer = trace.header().layers[slot];
    const placement::LayerPlacement* found = placed.find(layer);
    COTERIE_REQUIRE(found != nullptr, "placement \"", name, "\" lacks layer ", layer,
                    ", which the trace has");
    described.layers.push_back(*found);
    auto& measured = described.measured.emplace_back();
    const auto rows = trace.layer(slot);
    for (const routing::Selection& text : texts) {
      measured.push_back(
          {placement::measure_placement(*found, routing::select_sets(rows, text)), 0});
    }
  }
  return described;
}

report::ReportData make_report(const routing::Trace& trace, const Named& placements,
                               const std::string& title, const std::string& fit) {
  const auto& header = trace.header();
  const auto rows = placement::fit_rows_of(fit);
  const bool holds_out = rows != placement::FitRows::kAll;
  std::vector<routing::Selection> texts = {placement::selection_of(rows, false)};
  if (holds_out) {
    texts.push_back(placement::selection_of(rows, true));
  }
  const placement::Placement& chosen = placements.back().second;
  report::ReportData data;
  data.title = title;
  data.num_devices = chosen.num_devices();
  data.num_experts = header.num_experts;
  data.top_k = header.top_k;
  data.load_cap = chosen.options.load_cap;
  data.baseline = placements.front().first;
  data.chosen = placements.back().first;
  for (const auto& [name, placed] : placements) {
    COTERIE_REQUIRE(placed.num_devices() == data.num_devices, "placement \"", name, "\" has ",
                    placed.num_devices(), " devices, \"", data.chosen, "\" has ", data.num_devices);
    data.placements.push_back(describe(name, placed, trace, texts));
  }
  const auto& measured = data.placements[0].measured[0];
  data.texts.push_back({"fitted", report::TextRole::kFit, measured[0].figures.num_tokens});
  if (holds_out) {
    data.texts.push_back({"held-out", report::TextRole::kHeldOut, measured[1].figures.num_tokens});
  }
  const auto sizes = routing::even_device_sizes(header.num_experts, data.num_devices);
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    const auto layer = trace.layer(slot);
    data.layers.push_back(
        {header.layers[slot],
         routing::replica_bounds(routing::select_sets(layer, texts.back()), sizes),
         routing::count_pairs(routing::select_sets(layer, texts.front()))});
  }
  data.provenance = {{"Trace", trace.name()},
                     {"Source", header.source},
                     {"Family", header.model_type},
                     {"Fingerprint", header.model_fingerprint}};
  return data;
}

}  // namespace

void bind_report(py::module_& module) {
  using report::ReportData;
  py::class_<ReportData>(module, "Report")
      .def("text", &report::text_report)
      .def("headline", &report::headline)
      .def("html", &report::html_report)
      .def(
          "save",
          [](const ReportData& data, const std::filesystem::path& path) {
            report::write_html_report(path, data);
          },
          py::arg("path"))
      .def("to_json", [](const ReportData& data) { return to_python(to_json(data)); })
      .def("__repr__", &report::text_report);
  module.def("make_report", &make_report, py::call_guard<py::gil_scoped_release>());
}

}  // namespace coterie::python
