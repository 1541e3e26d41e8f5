// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/verify_cluster.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Checks a placement file by code of its own: every expert has a place, no device is empty or\n"
    "holds an expert twice. With --trace, devices a token and load are counted by brute force and\n"
    "compared with what the file states. SGLang's physical_to_logical_map and vLLM's\n"
    "expert_to_ep_rank are read too. Of a cluster profile the fits and self-checks are judged.\n"
    "Exit code 2 if anything is wrong.\n"
    "\n"
    "Examples:\n"
    "  coterie verify placement.json\n"
    "  coterie verify placement.json --trace trace.bin\n"
    "  coterie verify cluster.json\n"
    "  coterie verify sglang.json --devices 8 --trace trace.bin --json";

struct VerifyFlags {
  std::filesystem::path file;
  std::vector<std::filesystem::path> traces;
  std::int32_t num_devices = 0;
  std::int32_t num_experts = 0;
};

/// Counts the rows with these numbers; a layer of counted sets as a whole.
placement::VerifiedFigures count_rows(const placement::VerifiedLayer& layer,
                                      std::int32_t num_devices, const routing::LayerTrace& rows,
                                      const routing::Selection& selection) {
  placement::BruteForceCount count(layer, num_devices);
  if (rows.counts) {
    for (std::size_t s = 0; s < rows.counts->num_sets(); ++s) {
      count.add(rows.counts->set(s), rows.counts->tokens[s]);
    }
    return count.figures();
  }
  for (const std::uint32_t row : routing::select_rows(rows, selection)) {
    count.add(rows.row(row), 1);
  }
  return count.figures();
}

bool is_close(double a, double b) {
  return std::abs(a - b) <= 1e-9 * (1 + std::abs(b));
}

/// Complaint about figures that the file states, or nothing.
std::string difference(const placement::VerifiedFigures& stated,
                       const placement::VerifiedFigures& counted, const char* which) {
  if (stated.num_tokens != counted.num_tokens) {
    return std::string(which) + " figures are of " + std::to_string(stated.num_tokens) +
           " tokens, the trace has " + std::to_string(counted.num_tokens) + " such";
  }
  const std::pair<const char*, std::pair<double, double>> pairs[] = {
      {"replicas", {stated.replicas, counted.replicas}},
      {"bottleneck_replicas", {stated.bottleneck_replicas, counted.bottleneck_replicas}},
      {"load_imbalance", {stated.load_imbalance, counted.load_imbalance}},
      {"receive_imbalance", {stated.receive_imbalance, counted.receive_imbalance}}};
  for (const auto& [name, values] : pairs) {
    if (!is_close(values.first, values.second)) {
      return join_message(which, " figure \"", name, "\" is stated as ", values.first,
                          ", counted as ", values.second);
    }
  }
  return "";
}

Json to_json(const placement::VerifiedFigures& figures) {
  return {{"num_tokens", figures.num_tokens},
          {"replicas", figures.replicas},
          {"bottleneck_replicas", figures.bottleneck_replicas},
          {"load_imbalance", figures.load_imbalance},
          {"receive_imbalance", figures.receive_imbalance}};
}

class Verification {
 public:
  explicit Verification(const VerifyFlags& flags)
      : name_(flags.file.string()),
        file_(placement::verify_placement_file(flags.file, flags.num_devices)) {
    text_ = join_message(name_, ": ", file_.kind, ", ", file_.layers.size(), " layers, ",
                         file_.num_devices, " devices: every expert has its place\n");
  }

  void compare_with(const routing::Trace& trace) {
    const std::string& traced = trace.header().model_fingerprint;
    COTERIE_REQUIRE(
        file_.model_fingerprint.empty() || traced.empty() || file_.model_fingerprint == traced,
        name_, ": the placement is of the model with fingerprint ", file_.model_fingerprint,
        ", the trace ", trace.name(), " of ", traced);
    const auto& numbers = trace.header().layers;
    for (const placement::VerifiedLayer& layer : file_.layers) {
      const auto found = std::find(numbers.begin(), numbers.end(), layer.layer);
      COTERIE_REQUIRE(found != numbers.end(), name_, ": layer ", layer.layer,
                      " is not in the trace ", trace.name());
      compare_layer(layer, trace.layer(static_cast<std::size_t>(found - numbers.begin())));
    }
    if (num_stated_ > 0) {
      text_ += "counted figures equal those that the file states\n";
    } else {
      text_ += "the file states no figures: there was nothing to compare these with\n";
    }
  }

  void tell(Console& console) const {
    console.print(text_);
    console.emit({{"file", name_},
                  {"kind", file_.kind},
                  {"num_devices", file_.num_devices},
                  {"num_layers", file_.layers.size()},
                  {"passed", true},
                  {"num_layers_compared", num_stated_},
                  {"layers", layers_}});
  }

 private:
  void compare_layer(const placement::VerifiedLayer& layer, const routing::LayerTrace& rows) {
    COTERIE_REQUIRE(layer.num_experts == rows.num_experts, name_, ": layer ", layer.layer, " has ",
                    layer.num_experts, " experts, the trace ", rows.num_experts);
    const bool is_ours = file_.kind == "coterie" && !file_.fit_rows.empty();
    const auto rows_kind =
        is_ours ? placement::fit_rows_of(file_.fit_rows) : placement::FitRows::kAll;
    const auto fit =
        count_rows(layer, file_.num_devices, rows, placement::selection_of(rows_kind, false));
    if (layer.stated_fit) {
      ++num_stated_;
      demand(difference(*layer.stated_fit, fit, "fit"), layer.layer);
    }
    if (file_.load_cap && layer.stated_fit && fit.load_imbalance > *file_.load_cap + 1e-9) {
      demand(join_message("load ", fit.load_imbalance, " is above the cap ", *file_.load_cap),
             layer.layer);
    }
    Json entry = {{"layer", layer.layer}, {"fit", to_json(fit)}};
    char line[160];
    std::snprintf(line, sizeof line, "layer %3d: %llu tokens, replicas %.4f, load %.3f\n",
                  layer.layer, static_cast<unsigned long long>(fit.num_tokens), fit.replicas,
                  fit.load_imbalance);
    text_ += line;
    if (layer.stated_held_out) {
      const auto held_out =
          count_rows(layer, file_.num_devices, rows, placement::selection_of(rows_kind, true));
      demand(difference(*layer.stated_held_out, held_out, "held-out"), layer.layer);
      entry["held_out"] = to_json(held_out);
    }
    layers_.push_back(std::move(entry));
  }

  void demand(const std::string& complaint, std::int32_t layer) const {
    COTERIE_REQUIRE(complaint.empty(), name_, ": layer ", layer, ": ", complaint);
  }

  std::string name_;
  placement::VerifiedFile file_;
  std::string text_;
  std::int32_t num_stated_ = 0;  // layers whose figures the file states
  Json layers_ = Json::array();
};

void run_verify(const VerifyFlags& flags, Console& console) {
  if (is_cluster_profile(flags.file)) {
    verify_cluster_profile(flags.file, console);
    return;
  }
  Verification verification(flags);
  if (!flags.traces.empty()) {
    routing::ImportOptions import;
    import.num_experts = flags.num_experts;
    verification.compare_with(*routing::open_trace(flags.traces, import));
  }
  verification.tell(console);
}

}  // namespace

void add_verify(CLI::App& app, Console& console) {
  CLI::App* command = app.add_subcommand(
      "verify", "check a placement, and its figures against a trace, or a cluster profile");
  auto flags = std::make_shared<VerifyFlags>();
  command->add_option("file", flags->file, "placement file or cluster profile")->required();
  command->add_option("--trace", flags->traces, "routing to count");
  command->add_option("--devices,--ep-size", flags->num_devices,
                      "devices, for files that do not say it");
  command->add_option("--experts", flags->num_experts, "experts a layer, as given to place");
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_verify(*flags, console); });
}

}  // namespace coterie::cli
