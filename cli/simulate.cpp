// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/plan_input.hpp"
#include "coterie/base/error.hpp"
#include "coterie/report/report.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Plans a model of equal layers for the profile's cluster at another size and simulates a\n"
    "training step on every device: collectives wait for their slowest member. Replicas are those\n"
    "of random placement unless given. Costs between nodes are extrapolated from the profile.\n"
    "\n"
    "Examples:\n"
    "  coterie simulate --cluster cluster.json --layers 96 --devices 4096 --model DIR --tokens "
    "4096\n"
    "  coterie simulate --cluster cluster.json --layers 32 --devices 512 --hidden 4096 \\\n"
    "                   --intermediate 2048 --experts 256 --top-k 8 --tokens 4096 \\\n"
    "                   --load-spread 0.1 --schedule fsmoe coterie --chart step.svg --json";

constexpr std::int32_t kMostExperts = 65534;  // as in a trace
constexpr std::int64_t kMostSize = 1 << 24;   // layers x devices

struct SimulateFlags {
  PlanInput input;
  std::int32_t num_layers = 0;
  std::int32_t num_devices = 0;
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  double node_replicas = 0;
  double device_replicas = 0;
  double load_spread = 0.05;
  double jitter = 0.01;
  std::uint64_t seed = 0;
};

struct Simulated {
  const schedule::Schedule* schedule;
  schedule::LayerPlan plan;
  schedule::ClusterRun run;
};

schedule::RoutingLoad load_of(const SimulateFlags& flags, const cost::ClusterProfile& profile) {
  const std::int32_t num_groups =
      flags.input.shape.shards_experts ? profile.num_nodes : profile.num_devices();
  schedule::RoutingLoad load =
      schedule::random_load(flags.num_experts, flags.top_k, num_groups, profile.num_nodes);
  const double most = flags.top_k;
  for (const auto& [flag, given, value] :
       {std::tuple("--node-replicas", flags.node_replicas, &load.node_replicas),
        std::tuple("--device-replicas", flags.device_replicas, &load.device_replicas)}) {
    if (given != 0) {
      COTERIE_REQUIRE(given >= 1 && given <= most, flag, " ", given, ": must be 1 to ", most,
                      " (--top-k)");
      *value = given;
    }
  }
  return load;
}

std::vector<Simulated> simulate_all(const SimulateFlags& flags, const cost::ClusterProfile& profile,
                                    Console& console) {
  const PlanInput& input = flags.input;
  const auto work = schedule::work_of(input.shape, load_of(flags, profile), profile, input.engine);
  const cost::Contention& contention = profile.engine(input.engine).contention;
  const std::vector<schedule::LayerWork> works(static_cast<std::size_t>(flags.num_layers), work);
  schedule::ClusterOptions options;
  options.num_nodes = profile.num_nodes;
  options.devices_per_node = profile.devices_per_node;
  options.load_spread = flags.load_spread;
  options.jitter = flags.jitter;
  options.seed = flags.seed;
  std::vector<Simulated> all;
  console.begin("simulate", static_cast<std::int64_t>(input.schedules.size()));
  for (const std::string& name : input.schedules) {
    const schedule::Schedule& each = schedule::find_schedule(name);
    const auto plan = schedule::plan_layer(each, work, contention, input.options);
    const std::vector<schedule::LayerPlan> plans(works.size(), plan);
    all.push_back({&each, plan, simulate_cluster(each, works, plans, contention, options)});
    console.update(static_cast<std::int64_t>(all.size()));
  }
  console.end();
  return all;
}

std::string text_of(const std::vector<Simulated>& all, const SimulateFlags& flags,
                    const cost::ClusterProfile& profile) {
  report::TextTable table(
      {"schedule", "step ms", "planned", "waiting", "chunks fwd", "bwd", "tokens/s"});
  const double tokens = flags.input.shape.tokens * profile.num_devices();
  for (const Simulated& each : all) {
    table.add_row(
        {std::string(each.schedule->label), report::fixed(1e3 * each.run.step_s, 2),
         report::fixed(1e3 * each.run.even_s, 2), report::fixed(100 * each.run.waiting(), 1) + " %",
         std::to_string(each.plan.forward.num_chunks()),
         std::to_string(each.plan.backward.num_chunks()),
         report::grouped(static_cast<std::uint64_t>(std::min(1e18, tokens / each.run.step_s)))});
  }
  return std::to_string(flags.num_layers) + " layers on " + std::to_string(profile.num_devices()) +
         " devices in " + std::to_string(profile.num_nodes) +
         (profile.num_nodes == 1 ? " node:\n" : " nodes:\n") + table.text();
}

Json json_of(const std::vector<Simulated>& all, const SimulateFlags& flags,
             const cost::ClusterProfile& profile) {
  Json runs = Json::array();
  for (const Simulated& each : all) {
    runs.push_back({{"schedule", each.schedule->name},
                    {"step_s", each.run.step_s},
                    {"forward_s", each.run.forward_s},
                    {"planned_s", each.run.even_s},
                    {"waiting", each.run.waiting()},
                    {"num_tasks", each.run.num_tasks},
                    {"plan", to_json(each.plan)}});
  }
  return {{"num_layers", flags.num_layers},
          {"num_devices", profile.num_devices()},
          {"num_nodes", profile.num_nodes},
          {"load", to_json(load_of(flags, profile))},
          {"runs", std::move(runs)}};
}

void run_simulate(SimulateFlags flags, Console& console) {
  PlanInput& input = flags.input;
  complete_input(input);
  if (input.schedules.empty()) {
    input.schedules = {"pipe_moe", "fsmoe", "coterie"};
  }
  for (const auto& [flag, value] :
       {std::pair("--layers", flags.num_layers), std::pair("--experts", flags.num_experts),
        std::pair("--top-k", flags.top_k)}) {
    COTERIE_REQUIRE(value >= 0, flag, " ", value, ": must not be negative");
  }
  flags.num_layers = flags.num_layers > 0 ? flags.num_layers : input.num_layers;
  flags.num_experts = flags.num_experts > 0 ? flags.num_experts : input.num_experts;
  flags.top_k = flags.top_k > 0 ? flags.top_k : input.top_k;
  COTERIE_REQUIRE(flags.num_layers >= 1 && flags.num_layers <= 10000, "--layers ", flags.num_layers,
                  ": must be 1 to 10000 (or --model)");
  COTERIE_REQUIRE(flags.num_experts >= 1 && flags.num_experts <= kMostExperts, "--experts ",
                  flags.num_experts, ": must be given (or --model), 1 to ", kMostExperts);
  COTERIE_REQUIRE(flags.top_k >= 1 && flags.top_k <= flags.num_experts, "--top-k ", flags.top_k,
                  ": must be 1 to ", flags.num_experts, " (or --model)");
  COTERIE_REQUIRE(flags.num_devices >= 1 && flags.num_devices <= (1 << 20), "--devices ",
                  flags.num_devices, ": must be 1 to ", 1 << 20);
  const std::int64_t size = std::int64_t{flags.num_layers} * flags.num_devices;
  COTERIE_REQUIRE(size <= kMostSize, "--layers ", flags.num_layers, " on --devices ",
                  flags.num_devices, ": ", size, " layers to simulate, at most ", kMostSize);
  check_outputs(input, {}, {});
  const auto profile = fit_profile(read_usable_profile(input, console), flags.num_devices);
  const auto all = simulate_all(flags, profile, console);
  for (const Simulated& each : all) {
    COTERIE_REQUIRE(each.run.step_s > 0, input.cluster.string(),
                    ": by this profile a step takes no time at all");
  }
  write_timeline(input, all.back().run.drawn,
                 std::string(all.back().schedule->label) + ", forward of layer 0, some of " +
                     std::to_string(profile.num_devices()) + " devices");
  console.print(text_of(all, flags, profile));
  console.emit(json_of(all, flags, profile));
}

}  // namespace

void add_simulate(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("simulate", "simulate a training step on up to thousands of devices");
  auto flags = std::make_shared<SimulateFlags>();
  command->add_option("--layers", flags->num_layers, "MoE layers, if no --model");
  command->add_option("--devices", flags->num_devices, "devices of the simulated cluster")
      ->required();
  command->add_option("--experts", flags->num_experts, "experts a layer, if no --model");
  command->add_option("--top-k", flags->top_k, "experts a token, if no --model");
  command->add_option("--node-replicas", flags->node_replicas,
                      "nodes a token reaches (default: random placement)");
  command->add_option("--device-replicas", flags->device_replicas,
                      "devices a token reaches (default: random placement)");
  command
      ->add_option("--load-spread", flags->load_spread,
                   "how uneven devices are: deviation of the logarithm of load")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command->add_option("--jitter", flags->jitter, "the same of single tasks")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "same seed, same figures")->capture_default_str();
  add_plan_input_flags(*command, flags->input);
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_simulate(*flags, console); });
}

}  // namespace coterie::cli
