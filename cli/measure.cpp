// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/report/report.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    "Times the layer's own exchanges between and inside nodes, the experts' products, and how "
    "each\n"
    "slows the others; fits alpha + size x beta in pieces; then predicts a layer that was not "
    "measured\n"
    "and runs it. Ranks of one host name are a node. What was measured is kept in OUT.part until "
    "all\n"
    "is: the same command goes on where it was interrupted.\n"
    "Exit code 2: an input is wrong, or the prediction is off by more than 25 % (the profile is\n"
    "written all the same, and refused by those who read it). Off by more than 10 %: a warning.\n"
    "\n"
    "Examples:\n"
    "  coterie measure --out cluster.json --nproc 4 --devices-per-node 2\n"
    "  sudo tools/cluster_in_a_box run -n 4 build/cpu/bin/coterie measure --out cluster.json \\\n"
    "       --hidden 512 --intermediate 1024 --tokens 512";

struct MeasureFlags {
  fs::path out;
  layer::ClusterMeasureOptions options;
  int devices_per_node = 0;
  LaunchFlags launch;

  [[nodiscard]] fs::path part() const { return out.string() + ".part"; }
};

/// What the samples in a file depend on.
Json settings_of(const MeasureFlags& flags, const profiling::Nodes& nodes,
                 const std::string& engine) {
  const layer::SyntheticShape& shape = flags.options.shape;
  return {{"hidden", shape.hidden},
          {"intermediate", shape.intermediate},
          {"experts", shape.num_experts},
          {"top_k", shape.top_k},
          {"tokens", shape.tokens},
          {"repeats", flags.options.measure.repeats},
          {"num_nodes", nodes.num_nodes},
          {"devices_per_node", nodes.devices_per_node},
          {"engine", engine}};
}

/// Rank 0's text on every rank.
std::string shared_text(comm::Communicator& world, std::string text) {
  std::int64_t size = std::ssize(text);
  world.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0, comm::Purpose::kControl);
  text.resize(static_cast<std::size_t>(size));
  world.broadcast(std::as_writable_bytes(std::span(text)), 0, comm::Purpose::kControl);
  return text;
}

/// Samples of an interrupted run with the same settings.
Json read_samples(const MeasureFlags& flags, const Json& settings, Console& console) {
  if (!fs::exists(flags.part())) {
    return Json::object();
  }
  const Json found = read_json_file(flags.part());
  const JsonReader reader(found, flags.part().string());
  if (reader.at("settings").value() != settings) {
    console.warn(flags.part().string() + ": samples of another measurement, begun anew");
    return Json::object();
  }
  return reader.at("samples").value();
}

void report(const cost::ClusterProfile& profile, const fs::path& out, Console& console) {
  report::TextTable table({"what", "alpha us", "per MB ms", "R^2", "worst point"});
  const auto add = [&](const std::string& name, const cost::CostModel& model) {
    if (model.quality().num_points > 0) {
      table.add_row({name, report::fixed(1e6 * model.alpha_s(), 1),
                     report::fixed(1e9 * model.beta_s(), 3),
                     report::fixed(model.quality().r_squared, 4),
                     report::fixed(100 * model.quality().largest_relative_error, 1) + " %"});
    }
  };
  const cost::Engine& engine = profile.engines.front();
  add("exchange between nodes", engine.exchange);
  add("all-gather inside", engine.all_gather);
  add("reduce-scatter inside", engine.reduce_scatter);
  add("exchange inside", engine.local_exchange);
  add("all-reduce of gradients", engine.all_reduce);
  add("product (per MFLOP)", profile.products);
  std::string text = table.text();
  for (const cost::ProfileCheck& check : profile.checks) {
    text += check.what + ": predicted " + report::fixed(1e3 * check.check.predicted_s, 2) +
            " ms, measured " + report::fixed(1e3 * check.check.measured_s, 2) + " ms (" +
            report::percent_change(check.check.measured_s, check.check.predicted_s) + ")\n";
  }
  console.print(text + "wrote " + out.string() + "\n");
}

int measure(const MeasureFlags& flags, comm::Communicator& world, Console& console) {
  const profiling::Nodes nodes = profiling::find_nodes(world, flags.devices_per_node);
  layer::ClusterMeasureOptions options = flags.options;
  options.source = join_message(world.name(), ", ", nodes.num_nodes, " x ", nodes.devices_per_node,
                                " ranks; attention taken for a product");
  const bool is_root = world.rank() == 0;
  const Json settings = settings_of(flags, nodes, world.name());
  layer::MeasureStore store;
  store.done = parse_json(
      shared_text(world, is_root ? read_samples(flags, settings, console).dump() : ""), "samples");
  if (is_root) {
    store.save = [&](const Json& done) {
      write_text_file(flags.part(), format_json({{"settings", settings}, {"samples", done}}));
    };
  }
  kernels::Threads pool(threads_of_rank(flags.launch, comm::read_rank_environment()));
  const cost::ClusterProfile profile =
      layer::measure_cluster(world, nodes, options, store, {&pool}, console);
  if (!is_root) {
    return 0;
  }
  cost::write_profile(flags.out, profile);
  fs::remove(flags.part());
  report(profile, flags.out, console);
  int code = 0;
  Json findings = Json::array();
  for (const cost::Finding& finding : cost::verify_profile(profile)) {
    console.warn(finding.message);
    findings.push_back({{"verdict", cost::name_of(finding.verdict)}, {"message", finding.message}});
    code = finding.verdict == cost::Verdict::kRefuse ? 2 : code;
  }
  console.emit({{"out", flags.out.string()},
                {"profile", cost::to_json(profile)},
                {"findings", std::move(findings)}});
  return code;
}

}  // namespace

void add_measure(CLI::App& app, Console& console) {
  auto flags = std::make_shared<MeasureFlags>();
  CLI::App* command = app.add_subcommand(
      "measure", "measure what links and products of a cluster cost: a profile to plan from");
  command->footer(kFooter);
  command->add_option("--out", flags->out, "cluster profile to write")->required();
  layer::SyntheticShape& shape = flags->options.shape;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 30);
  command->add_option("--name", flags->options.name, "name of the cluster")->capture_default_str();
  command->add_option("--hidden", shape.hidden, "width of a token")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--intermediate", shape.intermediate, "width of an expert")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--experts", shape.num_experts, "experts of the layer")
      ->check(CLI::Range(1, 65534))
      ->capture_default_str();
  command->add_option("--top-k", shape.top_k, "experts a token")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--tokens", shape.tokens, "most tokens of a rank and step")
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option("--repeats", flags->options.measure.repeats, "timed runs; their median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--devices-per-node", flags->devices_per_node,
                   "ranks of a node (default: those with one host name)")
      ->check(CLI::Range(1, 1024));
  add_launch_flags(*command, flags->launch);
  add_shared_flags(*command, console);
  command->callback([flags, &console] {
    run_on_ranks(flags->launch, console,
                 [&](comm::Communicator& world) { return measure(*flags, world, console); });
  });
}

}  // namespace coterie::cli
