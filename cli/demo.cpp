// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "cli/commands.hpp"
#include "cli/demo_report.hpp"
#include "cli/load_cap_flag.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kAlgorithms[] = {"contiguous", "occult", "coterie"};

constexpr const char* kFooter =
    "Traces the model on the text, places its experts three ways, measures each on held-out text,\n"
    "has real processes compute the model with each and compares bits and bytes, and writes into\n"
    "OUT: report.html, report.json, NAME.placement.json, the traces, and model/ (the checkpoint\n"
    "with its experts re-ordered, for any engine).\n"
    "\n"
    "Examples:\n"
    "  coterie demo                                      the bundled model and text\n"
    "  coterie demo --model DIR --text mine.txt --devices 4 --out out\n"
    "  coterie demo --model DIR --text a.txt b.txt --held-out c.txt --load-cap none --json";

struct DemoFlags {
  std::string model;
  std::vector<std::string> texts;
  std::vector<std::string> held_out;
  std::string out = "coterie-demo";
  std::string load_cap = "1.10";
  DemoOptions options;
  bool run = true;
  bool permute = true;
};

/// The bundled model and texts: beside the sources, or where they were installed.
std::filesystem::path bundled_demo() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path places[] = {
      program.parent_path().parent_path() / "share/coterie/demo", COTERIE_DEMO_DIR};
  for (const auto& place : places) {
    if (std::filesystem::exists(place / "model/config.json")) {
      return place;
    }
  }
  fail(ErrorCode::kIo, "the bundled model is not at ", COTERIE_DEMO_DIR,
       "; give --model and --text");
}

/// "novels" for ".../novels.fit.txt": the name up to its first point.
std::vector<models::TextSource> as_sources(const std::vector<std::string>& files) {
  std::vector<models::TextSource> sources;
  for (const std::string& file : files) {
    const std::string name = std::filesystem::path(file).filename().string();
    sources.push_back({name.substr(0, name.find('.')), file});
  }
  return sources;
}

std::vector<std::string> files_ending_with(const std::filesystem::path& folder,
                                           const std::string& ending) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(ending)) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

DemoOptions complete(const DemoFlags& flags) {
  COTERIE_REQUIRE(flags.model.empty() == flags.texts.empty(),
                  "--model and --text belong together (without both: the bundled model and text)");
  COTERIE_REQUIRE(flags.held_out.empty() || !flags.texts.empty(), "--held-out needs --text");
  DemoOptions options = flags.options;
  options.out = flags.out;
  options.model = flags.model;
  options.texts = as_sources(flags.texts);
  options.held_out_texts = as_sources(flags.held_out);
  if (flags.model.empty()) {
    const auto bundled = bundled_demo();
    options.model = bundled / "model";
    options.texts = as_sources(files_ending_with(bundled / "text", ".fit.txt"));
    options.held_out_texts = as_sources(files_ending_with(bundled / "text", ".heldout.txt"));
  }
  options.placement.load_cap = parse_load_cap(flags.load_cap);
  options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.placement.num_threads = options.num_threads;
  return options;
}

void demo(const DemoFlags& flags, Console& console) {
  const DemoOptions options = complete(flags);
  std::error_code failure;
  std::filesystem::create_directories(options.out, failure);
  if (failure) {
    fail(ErrorCode::kIo, options.out.string(), ": cannot create folder: ", failure.message());
  }
  const TracedText text = trace_texts(options, console);
  std::vector<JudgedPlacement> placements;
  for (const char* algorithm : kAlgorithms) {
    placements.push_back(place_and_judge(text, algorithm, options, console));
  }
  const DomainTransfer transfer = measure_transfer(text, options, console);
  std::optional<double> difference;
  if (flags.permute) {
    difference = write_placed_model(placements.back(), options, console);
  }
  if (flags.run) {
    for (JudgedPlacement& judged : placements) {
      judged.run = run_with_placement(judged, options, console);
    }
  }
  const auto data = make_report(options, text, placements, transfer, difference);
  const Json document = report::to_json(data);
  write_json_file(options.out / "report.json", document);
  report::write_html_report(options.out / "report.html", data);
  console.print(report::text_report(data));
  console.print("\nThe whole report: " + (options.out / "report.html").string() + "\n");
  console.emit(document);
}

}  // namespace

void add_demo(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("demo", "the whole job: trace, place, run, permute, report");
  const auto flags = std::make_shared<DemoFlags>();
  command->add_option("--model", flags->model, "folder of a Hugging Face MoE model");
  command->add_option("--text", flags->texts, "UTF-8 text files to fit the placement on");
  command->add_option("--held-out", flags->held_out,
                      "text files to judge it on (default: half of the sequences of --text)");
  command->add_option("--devices,--ep-size", flags->options.placement.num_devices, "devices")
      ->check(CLI::Range(1, 4096))
      ->default_val(8);
  command->add_option("--load-cap", flags->load_cap, "largest device load over the mean, or none")
      ->capture_default_str();
  command->add_option("--seed", flags->options.placement.seed, "of the search")
      ->capture_default_str();
  command->add_option("--max-tokens", flags->options.max_tokens, "of each text; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--sequence-length", flags->options.sequence_length, "tokens a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--run-tokens", flags->options.run_tokens,
                   "held-out tokens that real processes compute")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("!--no-run", flags->run, "do not start processes");
  command->add_flag("!--no-permute", flags->permute, "do not write the re-ordered checkpoint");
  command->add_option("--out", flags->out, "folder for what the job writes")->capture_default_str();
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { demo(*flags, console); });
}

}  // namespace coterie::cli
