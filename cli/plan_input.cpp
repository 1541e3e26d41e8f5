// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_input.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/report/report.hpp"

namespace coterie::cli {
namespace {

constexpr double kMostNumber = 1e12;
// Dense gradients are cut into pieces of 30 MB, one by one: these keep their number below 10^7.
constexpr double kMostHidden = 1e6;
constexpr double kMostBytes = 16;

/// The first of these keys that the config has; 0 if it has none.
double first_of(const JsonReader& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.has(key) && !config.at(key).value().is_null()) {
      return config.at(key).as_double();
    }
  }
  return 0;
}

void take(double& value, double found) {
  if (value == 0) {
    value = found;
  }
}

std::filesystem::path config_of(const std::filesystem::path& model) {
  return std::filesystem::is_directory(model) ? model / "config.json" : model;
}

void read_config(PlanInput& input) {
  const std::filesystem::path path = config_of(input.model);
  const Json json = read_json_file(path);
  const JsonReader config(json, path.string());
  schedule::BlockShape& shape = input.shape;
  take(shape.hidden, first_of(config, {"hidden_size"}));
  const double width = first_of(config, {"moe_intermediate_size", "intermediate_size"});
  take(shape.intermediate, width);
  const double num_shared = first_of(config, {"n_shared_experts"});
  const double shared = first_of(config, {"shared_expert_intermediate_size"});
  take(shape.shared_intermediate, shared > 0 ? shared : num_shared * width);
  const double heads = first_of(config, {"num_attention_heads"});
  const double kv_heads = first_of(config, {"num_key_value_heads", "num_attention_heads"});
  take(shape.kv_share, heads > 0 ? kv_heads / heads : 0);
  const auto whole = [&](std::initializer_list<const char*> keys) {
    return static_cast<std::int32_t>(std::clamp(first_of(config, keys), 0.0, 1e6));
  };
  input.num_experts = whole({"num_experts", "num_local_experts", "n_routed_experts"});
  input.top_k = whole({"num_experts_per_tok"});
  input.num_layers = whole({"num_hidden_layers"});
}

void need(double value, const char* flag, double most = kMostNumber) {
  COTERIE_REQUIRE(std::isfinite(value) && value > 0 && value <= most, flag,
                  ": must be given (or --model) and be positive, at most ", most, ", found ",
                  value);
}

}  // namespace

void add_plan_input_flags(CLI::App& command, PlanInput& input) {
  schedule::BlockShape& shape = input.shape;
  shape.kv_share = 0;
  command.add_option("--cluster", input.cluster, "cluster profile: what links and products cost")
      ->required();
  command.add_option("--engine", input.engine, "way to communicate (default: the profile's first)");
  command.add_option("--model", input.model, "folder with a config.json: sizes of the block");
  command.add_option("--hidden", shape.hidden, "hidden size, if no --model");
  command.add_option("--intermediate", shape.intermediate, "an expert's width, if no --model");
  command.add_option("--matrices", shape.num_matrices, "products of an expert: 3 gated, 2 plain")
      ->capture_default_str();
  command.add_option("--shared-intermediate", shape.shared_intermediate,
                     "width of experts that every token uses");
  command.add_option("--kv-share", shape.kv_share, "key/value heads over query heads (default: 1)");
  command.add_option("--tokens", shape.tokens, "tokens of a device and step")->required();
  command.add_option("--sequence-length", shape.sequence_length,
                     "tokens of a sequence (default: --tokens)");
  command.add_option("--activation-bytes", shape.activation_bytes, "of a number on its way out")
      ->capture_default_str();
  command.add_option("--sum-bytes", shape.sum_bytes, "of a partial sum on its way home")
      ->capture_default_str();
  command.add_option("--gradient-bytes", shape.gradient_bytes, "of a dense gradient")
      ->capture_default_str();
  command.add_flag("--expert-sharding", shape.shards_experts,
                   "each expert is cut over a node's devices; placed devices are nodes");
  std::string names;
  for (const schedule::Schedule* each : schedule::schedules()) {
    names += (names.empty() ? "" : ", ") + std::string(each->name);
  }
  command.add_option("--schedule", input.schedules, names);
  command.add_option("--planner", input.planner, "how chunk counts are chosen")
      ->check(CLI::IsMember({"enumerate", "algorithm_1", "oracle"}))
      ->capture_default_str();
  command.add_option("--max-chunks", input.options.most_chunks, "most chunks a phase")
      ->capture_default_str();
  command.add_flag("--weights-in-place", input.weights_in_place,
                   "ours: do not put products for weight gradients off into gaps");
  command.add_flag("--pipeline-attention", input.options.pipelines_attention,
                   "ours: cut attention into the chunks too");
  command.add_option("--chart", input.chart, "SVG of the layer drawn to write");
  command.add_option("--trace-events", input.trace_events,
                     "trace for ui.perfetto.dev or chrome://tracing to write");
}

void complete_input(PlanInput& input) {
  if (!input.model.empty()) {
    read_config(input);
  }
  schedule::BlockShape& shape = input.shape;
  take(shape.kv_share, 1);
  take(shape.sequence_length, shape.tokens);
  need(shape.hidden, "--hidden", kMostHidden);
  need(shape.intermediate, "--intermediate");
  need(shape.tokens, "--tokens");
  need(shape.num_matrices, "--matrices");
  need(shape.sequence_length, "--sequence-length");
  need(shape.kv_share, "--kv-share", 1);
  COTERIE_REQUIRE(shape.shared_intermediate >= 0 && shape.shared_intermediate <= kMostNumber,
                  "--shared-intermediate ", shape.shared_intermediate, ": must be 0 to ",
                  kMostNumber);
  need(shape.activation_bytes, "--activation-bytes", kMostBytes);
  need(shape.sum_bytes, "--sum-bytes", kMostBytes);
  need(shape.gradient_bytes, "--gradient-bytes", kMostBytes);
  COTERIE_REQUIRE(input.options.most_chunks >= 1 && input.options.most_chunks <= 64,
                  "--max-chunks ", input.options.most_chunks, ": must be 1 to 64");
  input.options.planner = schedule::planner_of(input.planner);
  input.options.puts_off_weights = !input.weights_in_place;
  for (const std::string& name : input.schedules) {
    schedule::find_schedule(name);
  }
}

void check_outputs(const PlanInput& input, std::vector<NamedOutput> outputs,
                   std::vector<std::filesystem::path> inputs) {
  outputs.insert(outputs.end(), {{"--chart", input.chart}, {"--trace-events", input.trace_events}});
  inputs.push_back(input.cluster);
  if (!input.model.empty()) {
    inputs.push_back(config_of(input.model));
  }
  std::vector<NamedOutput> seen;
  for (const NamedOutput& output : outputs) {
    if (output.path.empty()) {
      continue;
    }
    check_output(output.path, inputs, output.flag);
    std::error_code ignored;
    const auto target =
        std::filesystem::weakly_canonical(std::filesystem::absolute(output.path), ignored);
    COTERIE_REQUIRE(std::filesystem::is_directory(target.parent_path(), ignored), output.flag, " ",
                    output.path.string(), ": there is no such folder");
    COTERIE_REQUIRE(!std::filesystem::is_directory(target, ignored), output.flag, " ",
                    output.path.string(), ": it is a folder");
    for (const NamedOutput& other : seen) {
      COTERIE_REQUIRE(target != other.path, output.flag, " ", output.path.string(), ": ",
                      other.flag, " writes the same file");
    }
    seen.push_back({output.flag, target});
  }
}

cost::ClusterProfile read_usable_profile(const PlanInput& input, Console& console) {
  cost::ClusterProfile profile = cost::read_profile(input.cluster);
  (void)profile.engine(input.engine);
  cost::require_usable(profile, input.cluster.string());
  for (const cost::Finding& finding : cost::verify_profile(profile)) {
    console.warn(input.cluster.string() + ": " + finding.message);
  }
  return profile;
}

cost::ClusterProfile fit_profile(const cost::ClusterProfile& profile, std::int32_t num_devices) {
  if (num_devices <= profile.devices_per_node) {
    cost::ClusterProfile part = profile;
    part.num_nodes = 1;
    part.devices_per_node = num_devices;
    return part;
  }
  COTERIE_REQUIRE(num_devices % profile.devices_per_node == 0, num_devices,
                  " devices do not fill nodes of ", profile.devices_per_node,
                  " (devices_per_node of the cluster profile)");
  return cost::with_nodes(profile, num_devices / profile.devices_per_node);
}

void write_timeline(const PlanInput& input, const schedule::Timeline& timeline,
                    const std::string& title) {
  if (!input.chart.empty()) {
    write_text_file(input.chart, report::gantt_svg(timeline, title));
  }
  if (!input.trace_events.empty()) {
    write_json_file(input.trace_events, report::trace_events(timeline));
  }
}

std::string chunk_range(const std::vector<schedule::LayerPlan>& plans, schedule::Phase phase) {
  std::int32_t least = 1 << 30;
  std::int32_t most = 0;
  for (const schedule::LayerPlan& plan : plans) {
    const auto count =
        (phase == schedule::Phase::kForward ? plan.forward : plan.backward).num_chunks();
    least = std::min(least, count);
    most = std::max(most, count);
  }
  return least == most ? std::to_string(least) : std::to_string(least) + "-" + std::to_string(most);
}

}  // namespace coterie::cli
