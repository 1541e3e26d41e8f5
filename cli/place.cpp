// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/load_cap_flag.hpp"
#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Reads routing (binary or JSONL traces, router dumps, CSV) and writes where each expert goes.\n"
    "CSV files of expert sets are joined into layer 0. Exit code 3: the load cap cannot be kept;\n"
    "then nothing is written and the message names layer, expert and bound.\n"
    "\n"
    "Examples:\n"
    "  coterie place --trace trace.bin --devices 8 --out placement.json\n"
    "  coterie place --trace a.csv b.csv --devices 16 --load-cap none --out placement.json\n"
    "  coterie place --trace trace.bin --devices 16 --nodes 4 --num-redundant-experts 16 \\\n"
    "                --fit even-rows --out placement.json --json";

struct PlaceFlags {
  std::vector<std::filesystem::path> traces;
  std::filesystem::path out;
  std::string load_cap = "1.10";
  std::string objective = "mean";
  std::string algorithm = "coterie";
  std::string fit = "all";
  std::int32_t num_experts = 0;
  std::int32_t num_threads = 0;
  placement::PlacementOptions options;
};

placement::PlacementOptions options_of(const PlaceFlags& flags) {
  placement::PlacementOptions options = flags.options;
  options.load_cap = parse_load_cap(flags.load_cap);
  options.objective = flags.objective == "bottleneck" ? placement::Objective::kBottleneck
                                                      : placement::Objective::kMean;
  options.num_threads =
      flags.num_threads > 0
          ? flags.num_threads
          : static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  return options;
}

Json to_json(const placement::LayerFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas", figures.replicas},
          {"bottleneck_replicas", figures.bottleneck_replicas},
          {"load_imbalance", figures.load_imbalance},
          {"receive_imbalance", figures.receive_imbalance}};
}

Json to_json(const placement::PlacedLayer& layer, const placement::LayerComparison& comparison) {
  Json entry = {{"layer", layer.layer},
                {"fit", to_json(*layer.fit)},
                {"contiguous_fit", to_json(comparison.contiguous_fit)}};
  if (layer.held_out) {
    entry["held_out"] = to_json(*layer.held_out);
    entry["contiguous_held_out"] = to_json(*comparison.contiguous_held_out);
  }
  entry["random_replicas"] = comparison.bounds.random;
  entry["lower_bound_trivial"] = comparison.bounds.trivial;
  entry["lower_bound_star"] = comparison.bounds.star;
  return entry;
}

Json to_json(const placement::PlacedTrace& placed, const PlaceFlags& flags) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < placed.comparisons.size(); ++i) {
    layers.push_back(to_json(placed.placement.layers[i], placed.comparisons[i]));
  }
  return {{"out", flags.out.string()},
          {"algorithm", placed.placement.algorithm},
          {"num_devices", placed.placement.options.num_devices},
          {"trace_fingerprint", placed.placement.trace_fingerprint},
          {"layers", std::move(layers)}};
}

template <typename... Values>
std::string line(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// Replicas a token before and after, on the rows that matter most: held-out ones if there are any.
std::string table_of(const placement::PlacedTrace& placed) {
  const auto& layers = placed.placement.layers;
  const bool held_out = layers.front().held_out.has_value();
  std::string text = line("%s, %d devices; replicas = devices a token (C_T)%s\n",
                          placed.placement.algorithm.c_str(), placed.placement.num_devices(),
                          held_out ? "; fitted rows, then held-out rows" : "");
  text += line("%5s %9s | %7s %10s %9s %7s %5s", "layer", "tokens", "random", "contiguous",
               "replicas", "at best", "load");
  text += held_out ? line(" | %10s %9s %5s\n", "contiguous", "replicas", "load") : "\n";
  double before = 0;
  double after = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& fit = *layers[i].fit;
    const auto& comparison = placed.comparisons[i];
    text += line("%5d %9llu | %7.3f %10.3f %9.3f %7.3f %5.2f", layers[i].layer,
                 static_cast<unsigned long long>(fit.num_tokens), comparison.bounds.random,
                 comparison.contiguous_fit.replicas, fit.replicas, comparison.bounds.lower(),
                 fit.load_imbalance);
    before += comparison.contiguous_fit.replicas;
    after += fit.replicas;
    if (layers[i].held_out) {
      text += line(" | %10.3f %9.3f %5.2f", comparison.contiguous_held_out->replicas,
                   layers[i].held_out->replicas, layers[i].held_out->load_imbalance);
    }
    text += "\n";
  }
  text += line("mean of %zu layers: %.3f devices a token instead of %.3f (%+.1f %%)\n",
               layers.size(), after / static_cast<double>(layers.size()),
               before / static_cast<double>(layers.size()), 100 * (after / before - 1));
  return text;
}

void run_place(const PlaceFlags& flags, Console& console) {
  const placement::PlacementOptions options = options_of(flags);
  const placement::FitRows rows = placement::fit_rows_of(flags.fit);
  placement::find_algorithm(flags.algorithm);
  check_output(flags.out, {flags.traces.begin(), flags.traces.end()});
  { const AtomicFile probe(flags.out); }  // an unwritable place is better known now than later
  routing::ImportOptions import;
  import.num_experts = flags.num_experts;
  const auto trace = routing::open_trace(flags.traces, import);
  const auto placed = placement::place_trace(*trace, flags.algorithm, options, rows, console);
  placement::write_placement(flags.out, placed.placement);
  console.print(table_of(placed));
  console.print("wrote " + flags.out.string() + "\n");
  console.emit(to_json(placed, flags));
}

}  // namespace

void add_place(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("place", "choose a device for every expert from a routing trace");
  auto flags = std::make_shared<PlaceFlags>();
  placement::PlacementOptions& options = flags->options;
  command->add_option("--trace", flags->traces, "routing of one model, one or several files")
      ->required();
  command->add_option("--devices,--ep-size", options.num_devices, "devices that hold experts")
      ->required();
  command->add_option("--nodes", options.num_nodes, "nodes that the devices are in")
      ->capture_default_str();
  command
      ->add_option("--load-cap", flags->load_cap, "largest load of a device over the mean, or none")
      ->capture_default_str();
  command->add_option("--objective", flags->objective, "what to make small")
      ->check(CLI::IsMember({"mean", "bottleneck"}))
      ->capture_default_str();
  command
      ->add_option("--num-redundant-experts", options.num_redundant_experts,
                   "extra slots a layer in all, for second copies")
      ->capture_default_str();
  command->add_option("--experts", flags->num_experts,
                      "experts a layer, if the files do not say (default: highest id + 1)");
  std::string names;
  for (const placement::Algorithm& algorithm : placement::algorithms()) {
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  command->add_option("--algorithm", flags->algorithm, names)->capture_default_str();
  command->add_option("--seed", options.seed, "same seed, same file")->capture_default_str();
  command->add_option("--starts", options.num_starts, "searches a layer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--sample", options.sample_sets, "tokens a search works on before the polish")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40U))
      ->capture_default_str();
  command->add_option("--threads", flags->num_threads, "0: as many as the machine has")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option("--fit", flags->fit,
                   "rows to fit to: all, even-rows, first-half, sequences; others are held out")
      ->capture_default_str();
  command->add_option("--out", flags->out, "placement file to write")->required();
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_place(*flags, console); });
}

}  // namespace coterie::cli
