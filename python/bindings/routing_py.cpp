// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "coterie/base/error.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

using routing::Trace;
using Ids = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

/// [rows, top_k] ids of Python (-1: none) as a trace keeps them.
std::vector<std::uint16_t> narrow(const Ids& ids, std::int32_t num_experts,
                                  const std::string& where) {
  std::vector<std::uint16_t> narrow;
  narrow.reserve(static_cast<std::size_t>(ids.size()));
  for (py::ssize_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids.data()[i];
    COTERIE_REQUIRE(id >= -1 && id < num_experts, where, ": row ", i / ids.shape(1), ": expert id ",
                    id, " is outside [-1, ", num_experts, ")");
    narrow.push_back(id < 0 ? routing::kNoExpert : static_cast<std::uint16_t>(id));
  }
  return narrow;
}

/// Tokens without positions of their own: sequences of `sequence_length`, one domain.
std::shared_ptr<const std::vector<routing::TokenInfo>> make_tokens(std::size_t num_rows,
                                                                   std::uint32_t sequence_length) {
  auto tokens = std::make_shared<std::vector<routing::TokenInfo>>();
  tokens->reserve(num_rows);
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    tokens->push_back({row / sequence_length, row % sequence_length, 0, 0});
  }
  return tokens;
}

std::unique_ptr<Trace> trace_of_arrays(const std::map<std::int32_t, Ids>& layers,
                                       std::int32_t num_experts, std::uint32_t sequence_length,
                                       const std::string& model_type, const std::string& source) {
  COTERIE_REQUIRE(!layers.empty(), "a trace needs at least one layer");
  COTERIE_REQUIRE(sequence_length > 0, "sequence_length must be positive");
  routing::TraceHeader header;
  header.num_experts = num_experts;
  header.domains = {"text"};
  header.model_type = model_type;
  header.source = source;
  std::vector<routing::LayerTrace> traces;
  std::shared_ptr<const std::vector<routing::TokenInfo>> tokens;
  for (const auto& [layer, ids] : layers) {
    const std::string where = "layer " + std::to_string(layer);
    COTERIE_REQUIRE(ids.ndim() == 2 && ids.shape(1) > 0, where, ": ids must be [rows, top_k]");
    const auto num_rows = static_cast<std::size_t>(ids.shape(0));
    const auto top_k = static_cast<std::int32_t>(ids.shape(1));
    if (!tokens) {
      tokens = make_tokens(num_rows, sequence_length);
      header.top_k = top_k;
    }
    COTERIE_REQUIRE(num_rows == tokens->size() && top_k == header.top_k, where, ": ids are [",
                    num_rows, ", ", top_k, "], those of the first layer [", tokens->size(), ", ",
                    header.top_k, "]");
    header.layers.push_back(layer);
    traces.push_back({layer, num_experts, top_k, narrow(ids, num_experts, where), {}, tokens, {}});
  }
  return std::make_unique<routing::MemoryTrace>(std::move(header), std::move(traces), "trace");
}

std::size_t slot_of(const Trace& trace, std::int32_t layer) {
  const auto& layers = trace.header().layers;
  const auto found = std::ranges::find(layers, layer);
  COTERIE_REQUIRE(found != layers.end(), trace.name(), ": no layer ", layer);
  return static_cast<std::size_t>(found - layers.begin());
}

py::array_t<std::int32_t> ids_of(const Trace& trace, std::int32_t layer) {
  const auto rows = trace.layer(slot_of(trace, layer));
  COTERIE_REQUIRE(!rows.counts, trace.name(), ": layer ", layer, " holds counted sets, not rows");
  py::array_t<std::int32_t> ids(
      {static_cast<py::ssize_t>(rows.num_rows()), static_cast<py::ssize_t>(rows.top_k)});
  std::ranges::transform(rows.ids, ids.mutable_data(), [](std::uint16_t id) {
    return id == routing::kNoExpert ? -1 : static_cast<std::int32_t>(id);
  });
  return ids;
}

py::array_t<std::int64_t> loads_of(const Trace& trace, std::int32_t layer) {
  const auto loads = routing::select_sets(trace.layer(slot_of(trace, layer))).expert_loads();
  py::array_t<std::int64_t> array(static_cast<py::ssize_t>(loads.size()));
  std::ranges::copy(loads, array.mutable_data());
  return array;
}

std::string describe(const Trace& trace) {
  const auto& header = trace.header();
  return join_message("Trace(", header.layers.size(), " layers, ", trace.num_rows(0),
                      " tokens, top ", header.top_k, " of ", header.num_experts, " experts",
                      header.model_type.empty() ? "" : ", ", header.model_type, ")");
}

}  // namespace

void bind_routing(py::module_& module) {
  py::class_<Trace, std::shared_ptr<Trace>>(module, "Trace")
      .def_property_readonly("num_experts", [](const Trace& t) { return t.header().num_experts; })
      .def_property_readonly("top_k", [](const Trace& t) { return t.header().top_k; })
      .def_property_readonly("layers", [](const Trace& t) { return t.header().layers; })
      .def_property_readonly("domains", [](const Trace& t) { return t.header().domains; })
      .def_property_readonly("model_type", [](const Trace& t) { return t.header().model_type; })
      .def_property_readonly("model_fingerprint",
                             [](const Trace& t) { return t.header().model_fingerprint; })
      .def_property_readonly("num_tokens", [](const Trace& t) { return t.num_rows(0); })
      .def("ids", &ids_of, py::arg("layer"))
      .def("expert_loads", &loads_of, py::arg("layer"))
      .def(
          "save",
          [](const Trace& t, const std::filesystem::path& path) {
            path.extension() == ".jsonl" ? routing::write_jsonl_trace(path, t)
                                         : routing::write_trace(path, t);
          },
          py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def("to_json", [](const Trace& t) { return to_python(to_json(t.header())); })
      .def("__repr__", &describe);
  module.def("trace_of_arrays", [](const std::map<std::int32_t, Ids>& layers,
                                   std::int32_t num_experts, std::uint32_t sequence_length,
                                   const std::string& model_type, const std::string& source) {
    return std::shared_ptr<Trace>(
        trace_of_arrays(layers, num_experts, sequence_length, model_type, source));
  });
  module.def(
      "open_trace",
      [](const std::vector<std::filesystem::path>& files, std::int32_t num_experts,
         std::int32_t top_k, std::int32_t num_layers) {
        routing::ImportOptions options;
        options.num_experts = num_experts;
        options.top_k = top_k;
        options.num_layers = num_layers;
        return std::shared_ptr<Trace>(routing::open_trace(files, options));
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace coterie::python
