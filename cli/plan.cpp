// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/plan_input.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/report/report.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Sizes every exchange by the busiest node and device that the placement has on the trace, and\n"
    "plans each schedule for that. The gap is to the resource that is busiest when nothing is "
    "cut:\n"
    "no schedule can beat it. With --expert-sharding the placement's devices are whole nodes.\n"
    "Exit code 2: an input is wrong, or the profile's own checks are off by more than 25 %.\n"
    "\n"
    "Examples:\n"
    "  coterie plan --placement placement.json --trace trace.bin --cluster cluster.json \\\n"
    "               --model DIR --tokens 4096\n"
    "  coterie plan --placement placement.json --trace trace.bin --cluster cluster.json \\\n"
    "               --hidden 2048 --intermediate 1024 --tokens 4096 --schedule fsmoe coterie \\\n"
    "               --out plan.json --chart plan.svg --json";

struct PlanFlags {
  PlanInput input;
  std::filesystem::path placement;
  std::vector<std::filesystem::path> traces;
  std::filesystem::path out;
};

/// One schedule's plans of all layers.
struct Planned {
  const schedule::Schedule* schedule;
  std::vector<schedule::LayerPlan> plans;
  double step_s = 0;
};

struct Layers {
  std::vector<std::int32_t> numbers;
  std::vector<schedule::RoutingLoad> loads;
};

schedule::RoutingLoad load_of(const placement::LayerPlacement& layer,
                              const routing::ExpertSets& sets, std::int32_t num_nodes) {
  const placement::ReplicaChooser chooser(layer);
  std::vector<std::int32_t> ids;
  return schedule::measure_load(
      sets, layer.num_devices(), num_nodes,
      [&](std::span<const std::uint16_t> experts, std::span<std::int32_t> devices) {
        ids.assign(experts.begin(), experts.end());
        chooser.choose(ids, devices);
      });
}

Layers measure_layers(const PlanFlags& flags, const placement::Placement& placed,
                      std::int32_t num_nodes) {
  const auto trace = routing::open_trace(flags.traces);
  const std::string& traced = trace->header().model_fingerprint;
  COTERIE_REQUIRE(
      placed.model_fingerprint.empty() || traced.empty() || placed.model_fingerprint == traced,
      flags.placement.string(), ": the placement is of the model with fingerprint ",
      placed.model_fingerprint, ", the trace ", trace->name(), " of ", traced);
  const auto& slots = trace->header().layers;
  Layers layers;
  for (const placement::PlacedLayer& layer : placed.layers) {
    const auto found = std::ranges::find(slots, layer.layer);
    COTERIE_REQUIRE(found != slots.end(), trace->name(), ": it has no layer ", layer.layer,
                    ", which ", flags.placement.string(), " places");
    const auto rows = trace->layer(static_cast<std::size_t>(found - slots.begin()));
    COTERIE_REQUIRE(rows.num_experts <= layer.placement.num_experts, trace->name(), ": layer ",
                    layer.layer, " has ", rows.num_experts, " experts, the placement ",
                    layer.placement.num_experts);
    layers.numbers.push_back(layer.layer);
    layers.loads.push_back(load_of(layer.placement, routing::select_sets(rows), num_nodes));
  }
  COTERIE_REQUIRE(!layers.loads.empty(), flags.placement.string(), ": it places no layer");
  return layers;
}

std::vector<Planned> plan_all(const PlanInput& input, const Layers& layers,
                              const cost::ClusterProfile& profile) {
  std::vector<Planned> all;
  for (const schedule::Schedule* each : schedule::schedules()) {
    const bool is_wanted = input.schedules.empty() ||
                           std::ranges::find(input.schedules, each->name) != input.schedules.end();
    if (!is_wanted) {
      continue;
    }
    Planned planned{each, {}, 0};
    for (const schedule::RoutingLoad& load : layers.loads) {
      planned.plans.push_back(
          schedule::plan_layer(*each, schedule::work_of(input.shape, load, profile, input.engine),
                               profile.engine(input.engine).contention, input.options));
      planned.step_s += planned.plans.back().predicted_s();
    }
    all.push_back(std::move(planned));
  }
  return all;
}

schedule::LowerBound bound_of(const PlanInput& input, const Layers& layers,
                              const cost::ClusterProfile& profile) {
  schedule::LowerBound sum;
  for (const schedule::RoutingLoad& load : layers.loads) {
    const auto one =
        schedule::lower_bound_of(schedule::work_of(input.shape, load, profile, input.engine));
    sum.compute_s += one.compute_s;
    sum.inter_node_s += one.inter_node_s;
    sum.intra_node_s += one.intra_node_s;
  }
  return sum;
}

/// Where a backward pass over all layers sends its dense gradients: ours, and Lina's fixed pieces.
struct Gradients {
  double bytes = 0;
  schedule::GradientPartition greedy;
  schedule::GradientPartition pieces;
};

Gradients partition(const PlanInput& input, const Layers& layers,
                    const cost::ClusterProfile& profile) {
  std::vector<schedule::LayerWork> works;
  Gradients gradients;
  for (const schedule::RoutingLoad& load : layers.loads) {
    works.push_back(schedule::work_of(input.shape, load, profile, input.engine));
    gradients.bytes += works.back().gradient.size;
  }
  const cost::Engine& engine = profile.engine(input.engine);
  const auto own =
      schedule::gradient_layers_of(works, engine.contention, input.options.most_chunks);
  gradients.greedy = schedule::partition_gradients(own, engine.all_reduce);
  gradients.pieces = schedule::partition_gradients(
      own, engine.all_reduce, {schedule::GradientMethod::kFixedPieces, input.options.piece_bytes});
  return gradients;
}

std::string gradients_text(const Gradients& gradients) {
  if (gradients.bytes <= 0) {
    return "";
  }
  return "dense gradients, " + report::human_bytes(static_cast<std::uint64_t>(gradients.bytes)) +
         " a device: " + report::fixed(1e3 * gradients.greedy.exposed_s, 3) +
         " ms not hidden; in fixed pieces " + report::fixed(1e3 * gradients.pieces.exposed_s, 3) +
         " ms\n";
}

std::string text_of(const std::vector<Planned>& all, const schedule::LowerBound& bound,
                    const std::vector<schedule::Advice>& advice, std::size_t num_layers) {
  report::TextTable table(
      {"schedule", "step ms", "forward", "backward", "chunks fwd", "bwd", "over the bound"});
  for (const Planned& each : all) {
    double forward_s = 0;
    for (const schedule::LayerPlan& plan : each.plans) {
      forward_s += plan.forward.predicted_s;
    }
    table.add_row({std::string(each.schedule->label), report::fixed(1e3 * each.step_s, 3),
                   report::fixed(1e3 * forward_s, 3),
                   report::fixed(1e3 * (each.step_s - forward_s), 3),
                   chunk_range(each.plans, schedule::Phase::kForward),
                   chunk_range(each.plans, schedule::Phase::kBackward),
                   report::percent_change(bound.time_s(), each.step_s)});
  }
  std::string text = std::to_string(num_layers) +
                     (num_layers == 1 ? " layer, predicted:\n" : " layers, predicted:\n") +
                     table.text();
  text += "bound " + report::fixed(1e3 * bound.time_s(), 3) + " ms, by " +
          std::string(bound.bound_by()) + " (compute " + report::fixed(1e3 * bound.compute_s, 3) +
          ", between nodes " + report::fixed(1e3 * bound.inter_node_s, 3) + ", inside " +
          report::fixed(1e3 * bound.intra_node_s, 3) + " ms)\n";
  text += "what would help " + std::string(all.back().schedule->label) + " most:\n";
  for (const schedule::Advice& each : advice) {
    text += "  " + report::fixed(each.speed_up, 3) + "x  " + each.what + "\n";
  }
  return text;
}

Json json_of(const std::vector<Planned>& all, const schedule::LowerBound& bound,
             const std::vector<schedule::Advice>& advice, const Layers& layers) {
  Json schedules = Json::array();
  for (const Planned& each : all) {
    Json plans = Json::array();
    for (std::size_t i = 0; i < each.plans.size(); ++i) {
      Json entry = to_json(each.plans[i]);
      entry["layer"] = layers.numbers[i];
      plans.push_back(std::move(entry));
    }
    schedules.push_back({{"schedule", each.schedule->name},
                         {"predicted_s", each.step_s},
                         {"over_bound", each.step_s / bound.time_s()},
                         {"layers", std::move(plans)}});
  }
  Json helps = Json::array();
  for (const schedule::Advice& each : advice) {
    helps.push_back({{"name", each.name}, {"what", each.what}, {"speed_up", each.speed_up}});
  }
  Json loads = Json::array();
  for (std::size_t i = 0; i < layers.loads.size(); ++i) {
    Json entry = {{"layer", layers.numbers[i]}};
    entry.update(to_json(layers.loads[i]));
    loads.push_back(std::move(entry));
  }
  return {{"bound",
           {{"time_s", bound.time_s()},
            {"bound_by", bound.bound_by()},
            {"compute_s", bound.compute_s},
            {"inter_node_s", bound.inter_node_s},
            {"intra_node_s", bound.intra_node_s}}},
          {"loads", std::move(loads)},
          {"schedules", std::move(schedules)},
          {"advice", std::move(helps)}};
}

/// Files of the last schedule: the plan of all layers, the chart of the first.
void write_files(const PlanFlags& flags, const Planned& chosen, const Layers& layers,
                 const cost::ClusterProfile& profile) {
  const PlanInput& input = flags.input;
  if (!flags.out.empty()) {
    schedule::ModelPlan plan;
    plan.schedule = chosen.schedule->name;
    plan.cluster = profile.name;
    plan.engine = profile.engine(input.engine).name;
    for (std::size_t i = 0; i < chosen.plans.size(); ++i) {
      plan.layers.push_back({layers.numbers[i], chosen.plans[i]});
    }
    schedule::write_plan(flags.out, plan);
  }
  write_timeline(
      input,
      schedule::simulate_layer(
          *chosen.schedule, schedule::work_of(input.shape, layers.loads[0], profile, input.engine),
          chosen.plans[0], profile.engine(input.engine).contention),
      std::string(chosen.schedule->label) + ", layer " + std::to_string(layers.numbers[0]) +
          ", forward and backward");
}

void run_plan(PlanFlags flags, Console& console) {
  PlanInput& input = flags.input;
  complete_input(input);
  std::vector<std::filesystem::path> inputs = flags.traces;
  inputs.push_back(flags.placement);
  check_outputs(input, {{"--out", flags.out}}, std::move(inputs));
  const auto whole = read_usable_profile(input, console);
  const auto placed = placement::read_placement(flags.placement);
  const bool is_sharded = input.shape.shards_experts;
  const auto profile =
      fit_profile(whole, placed.num_devices() * (is_sharded ? whole.devices_per_node : 1));
  const Layers layers = measure_layers(flags, placed, profile.num_nodes);
  const auto all = plan_all(input, layers, profile);
  const auto bound = bound_of(input, layers, profile);
  COTERIE_REQUIRE(bound.time_s() > 0, input.cluster.string(),
                  ": by this profile the layers take no time at all");
  const auto advice = schedule::advise(*all.back().schedule, input.shape, layers.loads, profile,
                                       input.engine, input.options);
  write_files(flags, all.back(), layers, profile);
  const Gradients gradients = partition(input, layers, profile);
  console.print(text_of(all, bound, advice, layers.loads.size()) + gradients_text(gradients));
  Json document = json_of(all, bound, advice, layers);
  document["gradients"] = {{"bytes", gradients.bytes},
                           {"greedy", to_json(gradients.greedy)},
                           {"fixed_pieces", to_json(gradients.pieces)}};
  console.emit(document);
}

}  // namespace

void add_plan(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("plan", "predict schedules for a placement on a cluster, and what helps");
  auto flags = std::make_shared<PlanFlags>();
  command->add_option("--placement", flags->placement, "placement file")->required();
  command->add_option("--trace", flags->traces, "routing of the same model")->required();
  add_plan_input_flags(*command, flags->input);
  command->add_option("--out", flags->out, "plan file to write, of the last schedule shown");
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_plan(*flags, console); });
}

}  // namespace coterie::cli
