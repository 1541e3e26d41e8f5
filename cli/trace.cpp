// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/model_texts.hpp"
#include "cli/output_path.hpp"
#include "coterie/base/error.hpp"
#include "coterie/models/models.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::cli {
namespace {

struct TraceFlags {
  std::string model;
  TextFlags texts;
  std::string out;
  std::string dtype = "fp32";
  int num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  models::RecordOptions options;
};

constexpr const char* kFooter =
    "The trace holds, for every token and layer, the experts that the model chose. It is what\n"
    "`coterie place` fits a placement to. A text's domain is its file name without the last\n"
    "ending, or what --domain says; statistics are kept by domain.\n"
    "\n"
    "Examples:\n"
    "  coterie trace --model DIR --text notes.txt mails.txt --out trace.bin\n"
    "  coterie trace --model DIR --domain code=a.py --domain code=b.py --domain prose=book.txt \\\n"
    "      --max-tokens 20000 --out trace.bin\n"
    "  coterie trace --model DIR --text notes.txt --loss --json --out trace.bin";

std::string table_line(const models::DomainRecord& record) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-20.20s %6llu %10llu %12llu", record.domain.c_str(),
                static_cast<unsigned long long>(record.num_files),
                static_cast<unsigned long long>(record.num_tokens),
                static_cast<unsigned long long>(record.num_bytes));
  std::string text = line;
  if (record.bits_per_byte) {
    std::snprintf(line, sizeof(line), " %13.4f", *record.bits_per_byte);
    text += line;
  }
  return text + "\n";
}

void report(Console& console, const TraceFlags& flags, const models::Decoder& decoder,
            const std::vector<models::DomainRecord>& records) {
  Json domains = Json::array();
  std::string table = "domain                files     tokens        bytes";
  table += flags.options.with_losses ? " bits per byte\n" : "\n";
  std::uint64_t num_tokens = 0;
  for (const models::DomainRecord& record : records) {
    Json entry = {{"domain", record.domain},
                  {"files", record.num_files},
                  {"sequences", record.num_sequences},
                  {"tokens", record.num_tokens},
                  {"bytes", record.num_bytes}};
    if (record.bits_per_byte) {
      entry["bits_per_byte"] = *record.bits_per_byte;
    }
    domains.push_back(entry);
    table += table_line(record);
    num_tokens += record.num_tokens;
  }
  const models::ModelConfig& config = decoder.config();
  console.print(table + "\n" + std::to_string(num_tokens) + " tokens, " +
                std::to_string(config.moe_layers.size()) + " layers, " +
                std::to_string(config.top_k) + " of " + std::to_string(config.num_experts) +
                " experts a token: " + flags.out + "\n");
  console.emit(Json{{"trace", flags.out},
                    {"model", flags.model},
                    {"model_fingerprint", decoder.fingerprint()},
                    {"tokens", num_tokens},
                    {"layers", config.moe_layers.size()},
                    {"num_experts", config.num_experts},
                    {"top_k", config.top_k},
                    {"domains", domains}});
}

void run_trace(const TraceFlags& flags, Console& console) {
  const std::vector<models::TextSource> sources = text_sources(flags.texts);
  COTERIE_REQUIRE(!sources.empty(), "give at least one text: --text FILE or --domain NAME=FILE");
  const std::filesystem::path model = flags.model;
  std::vector<std::filesystem::path> inputs = {model};
  for (const models::TextSource& source : sources) {
    inputs.push_back(source.file);
  }
  check_output(flags.out, inputs);
  kernels::Threads threads(flags.num_threads);
  models::DecoderOptions options;
  options.execution.threads = &threads;
  options.weight_type =
      flags.dtype == "bf16" ? kernels::DType::kBfloat16 : kernels::DType::kFloat32;
  models::Decoder decoder(model, options);
  for (const std::string& remark : decoder.checkpoint().remarks()) {
    console.warn(remark);
  }
  const models::Tokenizer tokenizer = models::Tokenizer::from_file(model / "tokenizer.json");
  const auto records =
      models::record_trace(decoder, tokenizer, sources, flags.options, flags.out, console);
  report(console, flags, decoder, records);
}

}  // namespace

void add_trace(CLI::App& app, Console& console) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* command =
      app.add_subcommand("trace", "Run a model over text and record which experts tokens choose");
  command->footer(kFooter);
  command
      ->add_option("--model", flags->model,
                   "model folder (config.json, safetensors, "
                   "tokenizer.json)")
      ->required();
  add_text_flags(*command, flags->texts);
  command->add_option("--out", flags->out, "trace file to write")->required();
  command
      ->add_option("--max-tokens", flags->options.max_tokens,
                   "at most so many tokens of each text; 0: all")
      ->capture_default_str();
  command
      ->add_option("--sequence-length", flags->options.sequence_length,
                   "tokens the model sees together")
      ->capture_default_str();
  command->add_option("--batch-tokens", flags->options.batch_tokens, "tokens computed together")
      ->capture_default_str();
  command->add_flag("--weights", flags->options.with_weights, "record routing weights too");
  command->add_flag("--loss", flags->options.with_losses, "compute bits per byte too");
  command->add_option("--dtype", flags->dtype, "type in which weights are kept; sums are fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--threads", flags->num_threads, "threads")->check(CLI::Range(1, 1024));
  add_shared_flags(*command, console);
  command->callback([flags, &console] { run_trace(*flags, console); });
}

}  // namespace coterie::cli
