// SPDX-License-Identifier: Apache-2.0
#include "cli/finetune_report.hpp"

#include <cstdio>
#include <filesystem>

#include "coterie/base/file.hpp"
#include "coterie/models/models.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"

namespace coterie::cli {
namespace {

namespace fs = std::filesystem;

/// The files of the report; JSON lines become texts, token files are left out.
std::vector<models::TextSource> profile_texts(const TrainJob& job) {
  const training::DataRecipe& data = job.recipe.data;
  const fs::path folder = job.run.out / "profile";
  std::vector<models::TextSource> texts;
  for (const training::TextSource& source : data.held_out.empty() ? data.sources : data.held_out) {
    for (const std::string& name : source.files) {
      const fs::path file = job.paths.resolve(name);
      if (file.extension() == ".tokens") {
        continue;
      }
      if (file.extension() != ".jsonl") {
        texts.push_back({source.name, file});
        continue;
      }
      std::string all;
      for (const std::string& text : training::read_json_lines_texts(file)) {
        all += text + "\n";
      }
      fs::create_directories(folder);
      texts.push_back({source.name, folder / (source.name + ".txt")});
      write_text_file(texts.back().file, all);
    }
  }
  return texts;
}

/// Records the unpruned routing of a model; returns its fingerprint.
std::string record(const TrainJob& job, const fs::path& model,
                   const std::vector<models::TextSource>& texts, const DriftFlags& flags,
                   const fs::path& out) {
  kernels::Threads threads(job.num_threads);
  models::DecoderOptions options;
  options.execution.threads = &threads;
  models::Decoder decoder(model, options);
  models::RecordOptions recording;
  recording.max_tokens = flags.profile_tokens;
  recording.with_weights = true;
  const models::Tokenizer tokenizer = models::Tokenizer::from_file(model / "tokenizer.json");
  models::record_trace(decoder, tokenizer, texts, recording, out);
  return decoder.fingerprint();
}

struct Report {
  std::vector<placement::LayerDrift> layers;
  placement::MoveEstimate estimate;
  placement::Placement placement;  ///< for the tuned model
  Json policy;                     ///< figures before and after, or null
};

placement::MoveCosts costs_of(const TrainJob& job, const DriftFlags& flags) {
  const models::ModelConfig model = training::config_of(job.recipe).model;
  const double bytes = job.recipe.dtype == "fp64" ? 8 : job.recipe.dtype == "bf16" ? 2 : 4;
  placement::MoveCosts costs;
  costs.expert_bytes =
      3.0 * static_cast<double>(model.hidden_size * model.expert_intermediate_size) * bytes;
  costs.row_bytes = 2.0 * static_cast<double>(model.hidden_size) * bytes;
  costs.horizon_tokens = flags.horizon_tokens;
  return costs;
}

Report compare(const TrainJob& job, const DriftFlags& flags, const routing::Trace& before,
               const routing::Trace& after) {
  Report report;
  placement::Placement old;
  if (job.recipe.tune.placement.empty()) {
    old = placement::contiguous_placement_of(after.header().layers, after.header().num_experts, 1);
  } else {
    old = placement::read_placement(job.recipe.tune.placement);
  }
  placement::PlacementOptions options = old.options;
  options.num_devices = old.layers.front().placement.num_devices();
  placement::PlacedTrace fresh =
      placement::place_trace(after, "coterie", options, placement::FitRows::kFirst);
  std::vector<placement::PlacementPair> pairs;
  for (std::size_t i = 0; i < old.layers.size(); ++i) {
    const routing::LayerTrace now = after.layer(i, true);
    report.layers.push_back(
        placement::measure_drift(before.layer(i, true), now, old.layers[i].placement));
    const auto& to = fresh.placement.layers[i].placement;
    // Both on the rows that the new placement was not fitted to.
    const auto held_out =
        routing::select_sets(now, placement::selection_of(placement::FitRows::kFirst, true));
    pairs.push_back({&old.layers[i].placement, &to,
                     placement::measure_placement(old.layers[i].placement, held_out).replicas,
                     placement::measure_placement(to, held_out).replicas});
  }
  report.estimate = placement::estimate_move(pairs, costs_of(job, flags));
  report.placement = report.estimate.worth_it ? std::move(fresh.placement) : std::move(old);
  return report;
}

/// The policy for the tuned model, with its figures there.
void write_policy(const TrainJob& job, Report& report, const routing::Trace& after,
                  const std::string& fingerprint) {
  pruning::Policy policy = pruning::read_policy(job.recipe.tune.pruning);
  const std::vector<pruning::PruningFigures> before = policy.figures;
  policy.model_fingerprint = fingerprint;
  policy.figures.clear();
  report.policy = Json::array();
  for (std::size_t i = 0; i < policy.layers.size(); ++i) {
    policy.figures.push_back(pruning::measure_pruning(after.layer(i, true),
                                                      report.placement.layers[i].placement,
                                                      policy.options, policy.options.budget_of(i)));
    Json entry = {{"layer", policy.layers[i]}, {"after", pruning::to_json(policy.figures[i])}};
    if (i < before.size()) {
      entry["before"] = pruning::to_json(before[i]);
    }
    report.policy.push_back(std::move(entry));
  }
  pruning::write_policy(job.run.out / "pruning.json", policy);
}

std::string to_text(const Report& report) {
  std::string text =
      "layer   C_T before   after   load before   after   JS load   JS token   same picks\n";
  for (const placement::LayerDrift& layer : report.layers) {
    char line[160];
    std::snprintf(line, sizeof line,
                  "%5d   %10.3f  %6.3f   %11.3f  %6.3f  %8.4f  %9.4f  %10.1f%%\n", layer.layer,
                  layer.replicas_before, layer.replicas_after, layer.load_imbalance_before,
                  layer.load_imbalance_after, layer.load_distance, layer.token_distance,
                  100 * layer.same_picks);
    text += line;
  }
  const placement::MoveEstimate& move = report.estimate;
  char line[300];
  std::snprintf(
      line, sizeof line,
      "placing anew: C_T %.3f -> %.3f on held-out rows, %lld experts (%.3g MB) move, pays "
      "after %.3g tokens: %s\n",
      move.replicas_old, move.replicas_new, static_cast<long long>(move.num_moved),
      move.bytes_moved / 1e6, move.break_even_tokens, move.worth_it ? "done" : "left as it is");
  return text + line;
}

}  // namespace

void report_drift(const TrainJob& job, const DriftFlags& flags, Console& console) {
  const std::vector<models::TextSource> texts = profile_texts(job);
  if (flags.profile_tokens == 0 || texts.empty()) {
    return;
  }
  const fs::path out = job.run.out;
  console.begin("profiling both models", 0);
  record(job, job.paths.resolve(job.recipe.start_from), texts, flags, out / "before.trace");
  const std::string fingerprint = record(job, out / "model", texts, flags, out / "after.trace");
  console.end();
  const std::vector<fs::path> before_files = {out / "before.trace"};
  const std::vector<fs::path> after_files = {out / "after.trace"};
  const auto before = routing::open_trace(before_files);
  const auto after = routing::open_trace(after_files);
  Report report = compare(job, flags, *before, *after);
  report.placement.model_fingerprint = fingerprint;
  if (!job.recipe.tune.placement.empty()) {
    placement::write_placement(out / "placement.json", report.placement);
  }
  if (!job.recipe.tune.pruning.empty()) {
    write_policy(job, report, *after, fingerprint);
  }
  if (!job.recipe.tune.similarity.empty()) {  // the tables that it was tuned with
    pruning::ModelSimilarity similarity = pruning::read_similarity(job.recipe.tune.similarity);
    similarity.model_fingerprint = fingerprint;
    pruning::write_similarity(out / "similarity.json", similarity);
  }
  Json layers = Json::array();
  for (const placement::LayerDrift& layer : report.layers) {
    layers.push_back(placement::to_json(layer));
  }
  write_json_file(out / "drift.json", {{"layers", layers},
                                       {"move", placement::to_json(report.estimate)},
                                       {"pruning", report.policy}});
  console.print(to_text(report));
}

}  // namespace coterie::cli
