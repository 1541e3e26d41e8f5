// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "cli/commands.hpp"
#include "cli/model_texts.hpp"
#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/evaluation/evaluation.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Compares the experts of each layer on your text: by what the router says of them, or by what\n"
    "they give for the same tokens (all experts for all tokens: experts / top_k times the work).\n"
    "Pruning with --replacement similarity replaces an expert by the most similar one that a "
    "token\n"
    "may reach.\n"
    "\n"
    "Examples:\n"
    "  coterie similarity --model DIR --text notes.txt --out similarity.json\n"
    "  coterie similarity --model DIR --text notes.txt --by outputs --max-tokens 4096 --out "
    "o.json\n"
    "  coterie similarity --model DIR --text notes.txt --measure squared_cosine --out paper.json";

struct SimilarityFlags {
  std::filesystem::path model;
  TextFlags texts;
  std::filesystem::path out;
  std::string by = "router";
  std::string measure;
  evaluation::SequenceOptions options;
  int num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

/// Mean over experts of the similarity to the most similar other.
double mean_of_nearest(const pruning::SimilarityTable& table) {
  double sum = 0;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    double best = -1;
    for (std::size_t j = 0; j < table.rows(); ++j) {
      best = i == j ? best : std::max(best, table(i, j));
    }
    sum += best;
  }
  return sum / static_cast<double>(table.rows());
}

void run_similarity(const SimilarityFlags& flags, Console& console) {
  const auto sources = text_sources(flags.texts);
  COTERIE_REQUIRE(!sources.empty(), "give at least one text: --text FILE or --domain NAME=FILE");
  std::vector<std::filesystem::path> inputs = {flags.model};
  for (const models::TextSource& source : sources) {
    inputs.push_back(source.file);
  }
  check_output(flags.out, inputs);
  kernels::Threads threads(flags.num_threads);
  models::DecoderOptions options;
  options.execution.threads = &threads;
  const bool by_outputs = flags.by == "outputs";
  options.keep_router_logits = !by_outputs;
  const std::string measure_name = !flags.measure.empty() ? flags.measure
                                   : by_outputs           ? "cosine"
                                                          : "centred_cosine";
  const pruning::Measure measure = pruning::measure_of(measure_name);
  COTERIE_REQUIRE(!by_outputs || measure != pruning::Measure::kCentredCosine,
                  "--measure centred_cosine is not defined for --by outputs (cosine and "
                  "squared_cosine are)");
  models::Decoder decoder(flags.model, options);
  const auto tokenizer = models::Tokenizer::from_file(flags.model / "tokenizer.json");
  const auto domains = evaluation::read_domains(decoder, tokenizer, sources, flags.options);
  const auto compare = by_outputs ? evaluation::output_similarity : evaluation::router_similarity;
  const pruning::ModelSimilarity similarity =
      compare(decoder, domains, flags.options, measure, console);
  pruning::write_similarity(flags.out, similarity);
  std::string text = "layer  similarity to the nearest expert, mean\n";
  Json layers = Json::array();
  for (std::size_t i = 0; i < similarity.layers.size(); ++i) {
    const double nearest = mean_of_nearest(similarity.tables[i]);
    char line[64];
    std::snprintf(line, sizeof line, "%5d  %.4f\n", similarity.layers[i], nearest);
    text += line;
    layers.push_back({{"layer", similarity.layers[i]}, {"mean_nearest", nearest}});
  }
  console.print(text + "\n" + std::to_string(similarity.num_tokens) +
                " tokens: " + flags.out.string() + "\n");
  console.emit({{"similarity", flags.out.string()},
                {"by", flags.by},
                {"measure", measure_name},
                {"tokens", similarity.num_tokens},
                {"layers", layers}});
}

}  // namespace

void add_similarity(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("similarity", "compare a model's experts, for pruning by similarity");
  const auto flags = std::make_shared<SimilarityFlags>();
  command->add_option("--model", flags->model, "folder of the model")->required();
  add_text_flags(*command, flags->texts);
  command->add_option("--by", flags->by, "what is compared: the router's logits, or outputs")
      ->check(CLI::IsMember({"router", "outputs"}))
      ->capture_default_str();
  command
      ->add_option("--measure", flags->measure,
                   "over tokens (default: centred_cosine; of outputs: cosine)")
      ->check(CLI::IsMember({"cosine", "centred_cosine", "squared_cosine"}));
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
  command->add_option("--threads", flags->num_threads, "threads")->check(CLI::Range(1, 1024));
  command->add_option("--out", flags->out, "similarity file to write")->required();
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run_similarity(*flags, console); });
}

}  // namespace coterie::cli
