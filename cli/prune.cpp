// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Pruning changes results: a token uses experts of at most --max-devices devices, and experts\n"
    "elsewhere are replaced by others. This command chooses nothing at random and runs no model: "
    "it\n"
    "writes down the policy and counts, on a trace recorded with weights, what it does to the "
    "rows\n"
    "on the wire and to the score that tokens keep. coterie evaluate --pruning shows what it "
    "costs.\n"
    "\n"
    "Examples:\n"
    "  coterie trace --model DIR --text FILE --weights --out trace.bin\n"
    "  coterie prune --trace trace.bin --placement placement.json --max-devices 2 --out "
    "pruning.json\n"
    "  coterie prune --trace trace.bin --placement placement.json --max-devices 4 \\\n"
    "      --mean-devices 2 --out pruning.json        # budgets that differ by layer and by token";

struct PruneFlags {
  std::vector<std::filesystem::path> traces;
  std::filesystem::path placement;
  std::filesystem::path out;
  std::int32_t max_devices = 0;
  std::int32_t min_devices = 1;
  std::optional<double> mean_devices;
  std::string device_choice = "kept_mass";
  std::string replacement = "router_score";
  std::string weights = "own_score";
};

/// The slot of a layer of the placement in the trace.
std::size_t slot_of(const routing::Trace& trace, std::int32_t layer) {
  const auto& layers = trace.header().layers;
  const auto found = std::find(layers.begin(), layers.end(), layer);
  COTERIE_REQUIRE(found != layers.end(), "layer ", layer, " of the placement is not in the trace ",
                  trace.name());
  return static_cast<std::size_t>(found - layers.begin());
}

/// The share below which devices are dropped, so that a token and layer has so many in the mean.
double fit_share(const routing::Trace& trace, const placement::Placement& placement,
                 const pruning::PruningOptions& options, double mean_devices) {
  pruning::ThresholdFit fit;
  for (const placement::PlacedLayer& layer : placement.layers) {
    pruning::add_layer(fit, trace.layer(slot_of(trace, layer.layer), true), layer.placement,
                       options.budget);
  }
  return fit.fit(mean_devices).min_share;
}

std::string table_of(const pruning::Policy& policy) {
  std::string text =
      "layer     C_T  pruned   bytes  tokens limited  score kept  replaced a token\n";
  for (std::size_t i = 0; i < policy.layers.size(); ++i) {
    const pruning::PruningFigures& figures = policy.figures[i];
    char line[160];
    std::snprintf(line, sizeof line, "%5d  %6.3f  %6.3f  %5.1f%%  %13.1f%%  %9.2f%%  %16.3f\n",
                  policy.layers[i], figures.replicas_before, figures.replicas_after,
                  100 * figures.traffic_ratio(), 100 * figures.limited_share,
                  100 * figures.kept_mass, figures.replaced_picks);
    text += line;
  }
  return text;
}

void run_prune(const PruneFlags& flags, Console& console) {
  std::vector<std::filesystem::path> inputs = flags.traces;
  inputs.push_back(flags.placement);
  check_output(flags.out, inputs);
  const placement::Placement placement = placement::read_placement(flags.placement);
  const auto trace = routing::open_trace(flags.traces);
  const std::string& traced = trace->header().model_fingerprint;
  COTERIE_REQUIRE(placement.model_fingerprint.empty() || traced.empty() ||
                      placement.model_fingerprint == traced,
                  flags.placement.string(), ": the placement is of the model with fingerprint ",
                  placement.model_fingerprint, ", the trace ", trace->name(), " of ", traced);
  pruning::Policy policy;
  policy.model_fingerprint = placement.model_fingerprint;
  policy.num_devices = placement.num_devices();
  policy.options.device_choice = pruning::device_choice_of(flags.device_choice);
  policy.options.replacement = pruning::replacement_of(flags.replacement);
  policy.options.weights = pruning::weights_of(flags.weights);
  policy.options.budget = {flags.max_devices, flags.min_devices, 0};
  pruning::check_pruning_options(policy.options);
  COTERIE_REQUIRE(trace->header().has_weights, trace->name(),
                  ": the trace holds no routing weights: record it with coterie trace --weights");
  if (flags.mean_devices) {
    policy.options.budget.min_share =
        fit_share(*trace, placement, policy.options, *flags.mean_devices);
  }
  console.begin("pruning layers", std::ssize(placement.layers));
  for (const placement::PlacedLayer& layer : placement.layers) {
    policy.layers.push_back(layer.layer);
    policy.figures.push_back(
        pruning::measure_pruning(trace->layer(slot_of(*trace, layer.layer), true), layer.placement,
                                 policy.options, policy.options.budget));
    console.update(std::ssize(policy.layers));
  }
  console.end();
  pruning::write_policy(flags.out, policy);
  console.print(table_of(policy) + "\n" + flags.out.string() + "\n");
  Json layers = Json::array();
  for (std::size_t i = 0; i < policy.layers.size(); ++i) {
    Json entry = {{"layer", policy.layers[i]}};
    entry.update(pruning::to_json(policy.figures[i]));
    entry["traffic_ratio"] = policy.figures[i].traffic_ratio();
    layers.push_back(std::move(entry));
  }
  console.emit({{"pruning", flags.out.string()},
                {"options", pruning::to_json(policy.options)},
                {"layers", layers}});
}

}  // namespace

void add_prune(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("prune", "limit tokens to few devices: a policy, and what it keeps");
  const auto flags = std::make_shared<PruneFlags>();
  command->add_option("--trace", flags->traces, "routing recorded with weights")->required();
  command->add_option("--placement", flags->placement, "placement file")->required();
  command->add_option("--max-devices", flags->max_devices, "most devices a token")
      ->required()
      ->check(CLI::Range(1, 65535));
  command->add_option("--min-devices", flags->min_devices, "with --mean-devices: fewest a token")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command->add_option("--mean-devices", flags->mean_devices,
                      "devices a token in the mean over tokens and layers, spent where they keep "
                      "most score (default: --max-devices for all)");
  command->add_option("--device-choice", flags->device_choice, "kept_mass, first_seen")
      ->check(CLI::IsMember({"kept_mass", "first_seen"}))
      ->capture_default_str();
  command->add_option("--replacement", flags->replacement, "of experts elsewhere")
      ->check(CLI::IsMember({"router_score", "similarity", "none"}))
      ->capture_default_str();
  command->add_option("--weights", flags->weights, "of the experts that a token ends with")
      ->check(CLI::IsMember({"own_score", "keep_sum"}))
      ->capture_default_str();
  command->add_option("--out", flags->out, "policy file to write")->required();
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_prune(*flags, console); });
}

}  // namespace coterie::cli
