// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/schedule.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/report/report.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

/// One schedule's plan of a model, and what it is worth.
struct Planned {
  schedule::ModelPlan plan;
  std::string label;
  double bound_s = 0;
};

std::vector<std::pair<std::int32_t, schedule::RoutingLoad>> loads_of(
    const routing::Trace& trace, const placement::Placement& placed, std::int32_t num_nodes) {
  std::vector<std::pair<std::int32_t, schedule::RoutingLoad>> loads;
  for (std::size_t slot = 0; slot < trace.header().layers.size(); ++slot) {
    const std::int32_t layer = trace.header().layers[slot];
    const placement::LayerPlacement* found = placed.find(layer);
    COTERIE_REQUIRE(found != nullptr, "the placement has no layer ", layer,
                    ", which the trace has");
    const placement::ReplicaChooser chooser(*found);
    std::vector<std::int32_t> ids;
    loads.emplace_back(
        layer, schedule::measure_load(
                   routing::select_sets(trace.layer(slot)), found->num_devices(), num_nodes,
                   [&](std::span<const std::uint16_t> experts, std::span<std::int32_t> devices) {
                     ids.assign(experts.begin(), experts.end());
                     chooser.choose(ids, devices);
                   }));
  }
  return loads;
}

/// Whole nodes of the profile, or a part of one node.
cost::ClusterProfile fit_profile(const cost::ClusterProfile& whole, std::int32_t num_devices) {
  cost::ClusterProfile profile = whole;
  if (num_devices <= whole.devices_per_node) {
    profile.num_nodes = 1;
    profile.devices_per_node = num_devices;
    return profile;
  }
  COTERIE_REQUIRE(num_devices % whole.devices_per_node == 0, "cluster profile \"", whole.name,
                  "\": ", num_devices, " devices are no whole number of its nodes of ",
                  whole.devices_per_node);
  return cost::with_nodes(whole, num_devices / whole.devices_per_node);
}

std::vector<Planned> plan(const routing::Trace& trace, const placement::Placement& placed,
                          const cost::ClusterProfile& whole, const schedule::BlockShape& shape,
                          const std::vector<std::string>& names, const std::string& engine) {
  cost::require_usable(whole, "cluster profile \"" + whole.name + "\"");
  const auto profile = fit_profile(whole, placed.num_devices());
  const auto loads = loads_of(trace, placed, profile.num_nodes);
  const auto& contention = profile.engine(engine).contention;
  std::vector<Planned> all;
  for (const schedule::Schedule* each : schedule::schedules()) {
    if (!names.empty() && std::ranges::find(names, each->name) == names.end()) {
      continue;
    }
    Planned planned;
    planned.label = each->label;
    planned.plan.schedule = each->name;
    planned.plan.cluster = profile.name;
    planned.plan.engine = profile.engine(engine).name;
    for (const auto& [layer, load] : loads) {
      const auto work = schedule::work_of(shape, load, profile, engine);
      planned.plan.layers.push_back({layer, schedule::plan_layer(*each, work, contention)});
      planned.bound_s += schedule::lower_bound_of(work).time_s();
    }
    all.push_back(std::move(planned));
  }
  return all;
}

std::string describe(const Planned& planned) {
  return join_message("Plan(", planned.plan.schedule, " on ", planned.plan.cluster, ": ",
                      report::fixed(1e3 * planned.plan.predicted_s(), 3), " ms a step, ",
                      report::percent_change(planned.bound_s, planned.plan.predicted_s()),
                      " over the bound)");
}

schedule::BlockShape shape_of(double hidden, double intermediate, double tokens,
                              double sequence_length, double shared_intermediate, double kv_share) {
  COTERIE_REQUIRE(hidden > 0 && intermediate > 0 && tokens > 0, "plan: hidden ", hidden,
                  ", intermediate ", intermediate, ", tokens ", tokens, ": all must be positive");
  schedule::BlockShape shape;
  shape.hidden = hidden;
  shape.intermediate = intermediate;
  shape.tokens = tokens;
  shape.sequence_length = sequence_length > 0 ? sequence_length : tokens;
  shape.shared_intermediate = shared_intermediate;
  shape.kv_share = kv_share;
  return shape;
}

}  // namespace

void bind_schedule(py::module_& module) {
  py::class_<Planned>(module, "Plan")
      .def_property_readonly("schedule", [](const Planned& p) { return p.plan.schedule; })
      .def_property_readonly("predicted_s", [](const Planned& p) { return p.plan.predicted_s(); })
      .def_readonly("bound_s", &Planned::bound_s)
      .def_readonly("label", &Planned::label)
      .def(
          "save",
          [](const Planned& p, const std::filesystem::path& path) {
            schedule::write_plan(path, p.plan);
          },
          py::arg("path"))
      .def("to_json", [](const Planned& p) { return to_python(to_json(p.plan)); })
      .def("__repr__", &describe);
  module.def(
      "plan",
      [](const routing::Trace& trace, const placement::Placement& placed,
         const std::filesystem::path& cluster, double hidden, double intermediate, double tokens,
         double sequence_length, double shared_intermediate, double kv_share,
         const std::vector<std::string>& names, const std::string& engine) {
        for (const std::string& name : names) {
          schedule::find_schedule(name);
        }
        return plan(
            trace, placed, cost::read_profile(cluster),
            shape_of(hidden, intermediate, tokens, sequence_length, shared_intermediate, kv_share),
            names, engine);
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("schedules", [] {
    std::vector<std::string> names;
    for (const schedule::Schedule* each : schedule::schedules()) {
      names.emplace_back(each->name);
    }
    return names;
  });
}

}  // namespace coterie::python
