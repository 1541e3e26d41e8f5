// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/parallel_run.hpp"
#include "cli/token_input.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::cli {
namespace {

constexpr std::size_t kMaxListedFlips = 20;

constexpr const char* kFooter =
    "The model is computed with its experts spread over N processes and compared with one "
    "process:\n"
    "same bits where that one is given the same placement, rounding apart where it is not.\n"
    "\n"
    "Examples:\n"
    "  coterie run --model DIR --text FILE --nproc 4\n"
    "  coterie run --model DIR --text FILE --placement placement.json --json\n"
    "  mpirun -n 4 coterie run --model DIR --text FILE --placement round_robin";

struct RunFlags {
  std::string model;
  TokenInputFlags input;
  LaunchFlags launch;
  std::string placement = "contiguous";
  std::string dtype = "fp32";
  std::string form = "per_device";
  std::uint64_t seed = 0;
  std::int32_t num_redundant_experts = 0;
  std::int64_t batch = 8;
  bool check = true;
};

/// The placement that the flags name: a file, or an algorithm that needs no routing.
placement::Placement find_placement(const RunFlags& flags, const models::ModelConfig& config,
                                    int num_devices) {
  if (std::filesystem::exists(flags.placement)) {
    return placement::read_placement(flags.placement);
  }
  const std::string& name = flags.placement;
  COTERIE_REQUIRE(name == "contiguous" || name == "round_robin" || name == "random", "--placement ",
                  name, ": no such file; names that need no trace are contiguous, round_robin, ",
                  "random (others: coterie place)");
  placement::Placement result;
  result.algorithm = name;
  result.options.num_devices = num_devices;
  result.options.num_redundant_experts = flags.num_redundant_experts;
  result.options.seed = flags.seed;
  routing::ExpertSets no_sets;
  no_sets.num_experts = static_cast<std::int32_t>(config.num_experts);
  for (const std::int32_t layer : config.moe_layers) {
    placement::PlacedLayer placed;
    placed.layer = layer;
    placed.placement = placement::place_layer(no_sets, name, result.options, layer);
    result.layers.push_back(std::move(placed));
  }
  return result;
}

/// Said before processes start: one rank's complaint would end the others with another code.
void check_sequences(const std::vector<std::vector<std::int32_t>>& sequences,
                     const models::ModelConfig& config) {
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    COTERIE_REQUIRE(std::ssize(sequences[s]) <= config.max_positions, "sequence ", s, " has ",
                    sequences[s].size(), " tokens, the model allows ", config.max_positions,
                    " (max_position_embeddings)");
    for (std::size_t t = 0; t < sequences[s].size(); ++t) {
      COTERIE_REQUIRE(sequences[s][t] >= 0 && sequences[s][t] < config.vocab_size, "sequence ", s,
                      ", position ", t, ": token id ", sequences[s][t], " is outside [0, ",
                      config.vocab_size, ")");
    }
  }
}

/// Number of processes: the flag, the launcher's, the placement file's, or 2.
int number_of_processes(const RunFlags& flags) {
  const comm::RankEnvironment environment = comm::read_rank_environment();
  if (flags.launch.num_processes > 0) {
    return flags.launch.num_processes;
  }
  if (environment.size > 1) {
    return environment.size;
  }
  if (std::filesystem::exists(flags.placement)) {
    return placement::read_placement(flags.placement).num_devices();
  }
  return 2;
}

Json to_json(const RoutingFlip& flip) {
  return {{"layer", flip.layer},
          {"sequence", flip.sequence},
          {"position", flip.position},
          {"one_process", flip.one_process},
          {"parallel", flip.parallel},
          {"margin", flip.margin},
          {"follows_an_earlier_flip", flip.follows}};
}

Json to_json(const LogitsCheck& logits) {
  Json flips = Json::array();
  for (std::size_t i = 0; i < std::min(logits.flips.size(), kMaxListedFlips); ++i) {
    flips.push_back(to_json(logits.flips[i]));
  }
  const double scale = logits.max_abs_logit > 0 ? logits.max_abs_logit : 1;
  return {{"bit_equal_to_one_process_with_same_placement", logits.same_placement_bit_equal},
          {"bit_identical_from_run_to_run", logits.runs_bit_identical},
          {"digest", logits.digest},
          {"max_abs_logit", logits.max_abs_logit},
          {"max_difference", logits.max_difference / scale},
          {"max_difference_before_flips", logits.max_difference_before_flips / scale},
          {"limit", kLogitLimit},
          {"routing_flips", logits.flips.size()},
          {"first_flips", flips}};
}

Json to_json(const ParallelRunResult& result, const RunFlags& flags,
             const std::vector<std::string>& failed) {
  Json traffic = {{"equal_on_every_rank", result.traffic.equal_on_every_rank}};
  for (std::size_t p = 0; p < TrafficCheck::kNames.size(); ++p) {
    traffic[TrafficCheck::kNames[p]] = {{"bytes_sent", result.traffic.sent[p]},
                                        {"bytes_predicted", result.traffic.predicted[p]}};
  }
  Json document = {{"model", flags.model},
                   {"placement", flags.placement},
                   {"dtype", flags.dtype},
                   {"exchange", flags.form},
                   {"num_processes", result.num_ranks},
                   {"engine", result.engine},
                   {"num_sequences", result.num_sequences},
                   {"num_tokens", result.num_tokens},
                   {"replicas_per_token", result.replicas_per_token},
                   {"tokens_per_s", static_cast<double>(result.num_tokens) / result.seconds},
                   {"traffic", traffic}};
  if (result.checked) {
    document["logits"] = to_json(result.logits);
  }
  document["passed"] = failed.empty();
  document["failed"] = failed;
  return document;
}

std::string format(const char* pattern, auto... values) {
  std::string text(512, '\0');
  const int length = std::snprintf(text.data(), text.size(), pattern, values...);
  text.resize(static_cast<std::size_t>(std::max(0, length)));
  return text;
}

std::string to_text(const ParallelRunResult& result, const RunFlags& flags,
                    const std::vector<std::string>& failed) {
  std::string text =
      format("%d processes (%s), placement %s, %s, rows %s, %lld sequences, %lld tokens\n",
             result.num_ranks, result.engine.c_str(), flags.placement.c_str(), flags.dtype.c_str(),
             flags.form.c_str(), static_cast<long long>(result.num_sequences),
             static_cast<long long>(result.num_tokens));
  text += format("  rows a token and layer (C_T)       %.4f\n", result.replicas_per_token);
  for (std::size_t p = 0; p < TrafficCheck::kNames.size(); ++p) {
    text += format("  %-9s bytes sent / predicted     %llu / %llu\n", TrafficCheck::kNames[p],
                   static_cast<unsigned long long>(result.traffic.sent[p]),
                   static_cast<unsigned long long>(result.traffic.predicted[p]));
  }
  text += format("  tokens a second                    %.0f\n",
                 static_cast<double>(result.num_tokens) / result.seconds);
  if (result.checked) {
    const LogitsCheck& logits = result.logits;
    const double scale = logits.max_abs_logit > 0 ? logits.max_abs_logit : 1;
    text += format("  one process, same placement        %s\n",
                   logits.same_placement_bit_equal ? "equal to the last bit" : "DIFFERENT");
    text += format("  a second run                       %s\n",
                   logits.runs_bit_identical ? "identical to the last bit" : "DIFFERENT");
    text += format("  one process: max |difference|      %.2e of max |logit| (limit %.0e)\n",
                   logits.max_difference_before_flips / scale, kLogitLimit);
    text += format("  near-tie routing flips             %zu\n", logits.flips.size());
    for (std::size_t i = 0; i < std::min(logits.flips.size(), kMaxListedFlips); ++i) {
      const RoutingFlip& flip = logits.flips[i];
      text += format("    layer %d, sequence %lld, position %lld: margin %.1e%s\n", flip.layer,
                     static_cast<long long>(flip.sequence), static_cast<long long>(flip.position),
                     flip.margin, flip.follows ? " (follows an earlier flip)" : "");
    }
  }
  for (const std::string& what : failed) {
    text += "FAILED: " + what + "\n";
  }
  return text;
}

void run(RunFlags flags, Console& console) {
  flags.launch.num_processes = number_of_processes(flags);
  // What is wrong with the input is said before processes start.
  const models::ModelConfig config = models::read_model_config(flags.model);
  ParallelRunOptions options;
  options.model = flags.model;
  options.placement = find_placement(flags, config, flags.launch.num_processes);
  COTERIE_REQUIRE(options.placement.num_devices() == flags.launch.num_processes, flags.placement,
                  ": the placement is for ", options.placement.num_devices(), " devices, but ",
                  flags.launch.num_processes, " processes are asked for");
  options.weight_type =
      flags.dtype == "bf16" ? kernels::DType::kBfloat16 : kernels::DType::kFloat32;
  options.form = exchange::exchange_form_of(flags.form);
  options.num_threads = threads_of_rank(flags.launch, comm::read_rank_environment());
  options.batch = flags.batch;
  options.check = flags.check;
  const Sequences sequences = read_sequences(flags.model, flags.input);
  check_sequences(sequences, config);
  run_on_ranks(flags.launch, console, [&](comm::Communicator& communicator) {
    NoProgress silent;
    Progress& progress = communicator.rank() == 0 ? static_cast<Progress&>(console) : silent;
    const ParallelRunResult result = run_parallel(options, sequences, communicator, progress);
    if (communicator.rank() != 0) {
      return 0;
    }
    const std::vector<std::string> failed = complaints(result, options.weight_type);
    console.print(to_text(result, flags, failed));
    console.emit(to_json(result, flags, failed));
    return failed.empty() ? 0 : exit_code_of(ErrorCode::kInternal);
  });
}

}  // namespace

void add_run(CLI::App& app, Console& console) {
  CLI::App* command = app.add_subcommand(
      "run", "compute a model with its experts on N processes, and compare with one");
  const auto flags = std::make_shared<RunFlags>();
  command->add_option("--model", flags->model, "folder of the model")->required();
  command->add_option("--text", flags->input.texts, "text files");
  command->add_option("--tokens", flags->input.tokens,
                      "instead of text: a file with a JSON list of token ids a line");
  command
      ->add_option("--placement", flags->placement,
                   "placement file, or contiguous, round_robin, random")
      ->capture_default_str();
  command
      ->add_option("--num-redundant-experts", flags->num_redundant_experts,
                   "second copies a layer, for a placement by name")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", flags->seed, "of --placement random");
  command->add_option("--sequence-length", flags->input.sequence_length, "tokens a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-tokens", flags->input.max_tokens, "of all texts; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "sequences a step, of all processes together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--exchange", flags->form,
                   "what one row is: a token for a device, or (classical) for an expert")
      ->check(CLI::IsMember({"per_device", "per_expert"}))
      ->capture_default_str();
  command->add_flag("--check,!--no-check", flags->check, "compare with one process (default)");
  add_launch_flags(*command, flags->launch);
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { run(*flags, console); });
}

}  // namespace coterie::cli
