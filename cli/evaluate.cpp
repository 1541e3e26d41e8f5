// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/model_texts.hpp"
#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/evaluation/evaluation.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Bits per byte of texts, and tasks: questions with choices (accuracy by log-likelihood) or "
    "with\n"
    "a target text (exact match), one JSON object a line, scored as lm-evaluation-harness does:\n"
    "  {\"context\": \"2 + 2 =\", \"choices\": [\"3\", \"4\"], \"answer\": 1}\n"
    "  {\"context\": \"Capital of France:\", \"target\": \"Paris\"}\n"
    "With --pruning the model is computed under that policy and once without: what pruning costs,\n"
    "with a 95% interval over sequences or questions.\n"
    "\n"
    "Examples:\n"
    "  coterie evaluate --model DIR --text heldout.txt --task questions.jsonl\n"
    "  coterie evaluate --model DIR --text heldout.txt --placement placement.json \\\n"
    "      --pruning pruning.json --json";

struct EvaluateFlags {
  std::filesystem::path model;
  TextFlags texts;
  std::vector<std::filesystem::path> tasks;
  std::filesystem::path placement;
  std::filesystem::path pruning;
  std::filesystem::path similarity;
  std::filesystem::path items;
  std::string dtype = "fp32";
  evaluation::SequenceOptions options;
  int num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

/// All that one way to compute the model gave.
struct Scores {
  std::vector<evaluation::DomainScore> domains;
  std::vector<evaluation::TaskScore> tasks;
};

models::DecoderOptions decoder_options(const EvaluateFlags& flags, kernels::Threads& threads) {
  models::DecoderOptions options;
  options.execution.threads = &threads;
  options.weight_type =
      flags.dtype == "bf16" ? kernels::DType::kBfloat16 : kernels::DType::kFloat32;
  if (!flags.placement.empty()) {
    options.placement = placement::read_placement(flags.placement);
  }
  if (!flags.pruning.empty()) {
    options.pruning = pruning::read_policy(flags.pruning);
  }
  if (!flags.similarity.empty()) {
    options.similarity = pruning::read_similarity(flags.similarity);
  }
  return options;
}

Scores score(const EvaluateFlags& flags, const models::DecoderOptions& options,
             const std::vector<models::TextSource>& sources,
             const std::vector<evaluation::Task>& tasks, Console& console) {
  models::Decoder decoder(flags.model, options);
  const auto tokenizer = models::Tokenizer::from_file(flags.model / "tokenizer.json");
  Scores scores;
  if (!sources.empty()) {
    const auto domains = evaluation::read_domains(decoder, tokenizer, sources, flags.options);
    scores.domains = evaluation::score_domains(decoder, tokenizer, domains, flags.options, console);
  }
  for (const evaluation::Task& task : tasks) {
    scores.tasks.push_back(
        evaluation::score_task(decoder, tokenizer, task, flags.options.batch_tokens, console));
  }
  return scores;
}

std::vector<double> correct_of(const evaluation::TaskScore& task) {
  std::vector<double> values;
  for (const evaluation::ItemScore& item : task.items) {
    values.push_back(item.correct ? 1 : 0);
  }
  return values;
}

Json to_json(const evaluation::Interval& interval) {
  return {{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

/// One line of the table, and what it says as JSON.
struct Line {
  std::string text;
  Json json;
};

Line domain_line(const evaluation::DomainScore& score, const evaluation::DomainScore* unpruned) {
  Line line;
  char text[200];
  std::snprintf(text, sizeof text, "%-24.24s %9lld tokens  %8.4f bits a byte  C_T %.3f",
                score.domain.c_str(), static_cast<long long>(score.num_tokens),
                score.bits_per_byte(), score.replicas);
  line.text = text;
  line.json = {{"domain", score.domain},
               {"tokens", score.num_tokens},
               {"bits_per_byte", score.bits_per_byte()},
               {"replicas", score.replicas}};
  if (unpruned != nullptr) {
    const auto change =
        evaluation::paired_ratio_difference(unpruned->bits, score.bits, score.bytes);
    std::snprintf(text, sizeof text, "  unpruned %.4f, C_T %.3f: %+.4f [%+.4f, %+.4f]",
                  unpruned->bits_per_byte(), unpruned->replicas, change.mean, change.low,
                  change.high);
    line.text += text;
    line.json["unpruned_bits_per_byte"] = unpruned->bits_per_byte();
    line.json["unpruned_replicas"] = unpruned->replicas;
    line.json["change"] = to_json(change);
  }
  line.text += "\n";
  return line;
}

Line task_line(const evaluation::TaskScore& score, const evaluation::TaskScore* unpruned) {
  Line line;
  char text[200];
  std::snprintf(text, sizeof text, "%-24.24s %9zu items   %8.4f %s", score.name.c_str(),
                score.items.size(), score.accuracy(), score.is_choice ? "acc" : "exact match");
  line.text = text;
  line.json = {{"task", score.name},
               {"items", score.items.size()},
               {score.is_choice ? "acc" : "exact_match", score.accuracy()}};
  if (score.is_choice) {
    line.json["acc_norm"] = score.accuracy_normalised();
    std::snprintf(text, sizeof text, "  %.4f acc_norm", score.accuracy_normalised());
    line.text += text;
  }
  if (unpruned != nullptr) {
    const auto change = evaluation::paired_difference(correct_of(*unpruned), correct_of(score));
    std::snprintf(text, sizeof text, "  unpruned %.4f: %+.4f [%+.4f, %+.4f]", unpruned->accuracy(),
                  change.mean, change.low, change.high);
    line.text += text;
    line.json["unpruned"] = unpruned->accuracy();
    line.json["change"] = to_json(change);
  }
  line.text += "\n";
  return line;
}

/// Every sequence's and every question's result, a JSON line each.
void write_items(const std::filesystem::path& path, const Scores& scores) {
  AtomicFile file(path);
  for (const evaluation::DomainScore& domain : scores.domains) {
    for (std::size_t i = 0; i < domain.bits.size(); ++i) {
      const Json json = {{"domain", domain.domain},
                         {"sequence", i},
                         {"bits", domain.bits[i]},
                         {"bytes", domain.bytes[i]}};
      file.write(json.dump() + "\n");
    }
  }
  for (const evaluation::TaskScore& task : scores.tasks) {
    for (std::size_t i = 0; i < task.items.size(); ++i) {
      const evaluation::ItemScore& item = task.items[i];
      Json json = {{"task", task.name}, {"item", i}, {"correct", item.correct}};
      if (task.is_choice) {
        json["correct_normalised"] = item.correct_normalised;
        json["log_likelihoods"] = item.log_likelihoods;
      } else {
        json["text"] = item.text;
      }
      file.write(json.dump() + "\n");
    }
  }
  file.commit();
}

void run_evaluate(const EvaluateFlags& flags, Console& console) {
  const auto sources = text_sources(flags.texts);
  std::vector<evaluation::Task> tasks;
  for (const std::filesystem::path& path : flags.tasks) {
    tasks.push_back(evaluation::read_task(path));
  }
  COTERIE_REQUIRE(!sources.empty() || !tasks.empty(),
                  "give something to evaluate: --text, --domain or --task");
  COTERIE_REQUIRE(flags.pruning.empty() || !flags.placement.empty(),
                  "--pruning needs the --placement that it was made for");
  if (!flags.items.empty()) {
    std::vector<std::filesystem::path> inputs = flags.tasks;
    inputs.push_back(flags.model);
    check_output(flags.items, inputs);
  }
  kernels::Threads threads(flags.num_threads);
  models::DecoderOptions options = decoder_options(flags, threads);
  const Scores scores = score(flags, options, sources, tasks, console);
  std::optional<Scores> unpruned;
  if (options.pruning) {
    options.pruning.reset();
    unpruned = score(flags, options, sources, tasks, console);
  }
  std::string text;
  Json document = {
      {"model", flags.model.string()}, {"domains", Json::array()}, {"tasks", Json::array()}};
  for (std::size_t i = 0; i < scores.domains.size(); ++i) {
    Line line = domain_line(scores.domains[i], unpruned ? &unpruned->domains[i] : nullptr);
    text += line.text;
    document["domains"].push_back(std::move(line.json));
  }
  for (std::size_t i = 0; i < scores.tasks.size(); ++i) {
    Line line = task_line(scores.tasks[i], unpruned ? &unpruned->tasks[i] : nullptr);
    text += line.text;
    document["tasks"].push_back(std::move(line.json));
  }
  if (!flags.items.empty()) {
    write_items(flags.items, scores);
  }
  console.print(text);
  console.emit(document);
}

}  // namespace

void add_evaluate(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("evaluate", "bits per byte and tasks, with and without pruning");
  const auto flags = std::make_shared<EvaluateFlags>();
  command->add_option("--model", flags->model, "folder of the model")->required();
  add_text_flags(*command, flags->texts);
  command->add_option("--task", flags->tasks, "files of questions, a JSON object a line");
  command->add_option("--placement", flags->placement, "placement file");
  command->add_option("--pruning", flags->pruning, "policy file of coterie prune");
  command->add_option("--similarity", flags->similarity, "file of coterie similarity");
  command->add_option("--items", flags->items, "JSON lines to write: every sequence and question");
  command
      ->add_option("--max-tokens", flags->options.max_tokens,
                   "at most so many tokens of each text; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--sequence-length", flags->options.sequence_length,
                   "tokens the model sees together")
      ->capture_default_str();
  command->add_option("--batch-tokens", flags->options.batch_tokens, "tokens computed together")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--threads", flags->num_threads, "threads")->check(CLI::Range(1, 1024));
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_evaluate(*flags, console); });
}

}  // namespace coterie::cli
