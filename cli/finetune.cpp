// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>

#include "cli/commands.hpp"
#include "cli/finetune_report.hpp"
#include "cli/launch.hpp"
#include "cli/train_job.hpp"
#include "coterie/base/error.hpp"
#include "coterie/training/training.hpp"

namespace coterie::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    "Data are UTF-8 text files or JSON lines with a member \"text\". OUT gets the checkpoints of "
    "the\n"
    "run, OUT/model (a folder that transformers loads; adapters merged), with --mode lora also\n"
    "OUT/adapter (PEFT), and after the last step a report on how routing has drifted: "
    "OUT/drift.json,\n"
    "OUT/placement.json and OUT/pruning.json for the tuned model. Experts are placed anew if that\n"
    "pays within --horizon-tokens; so placing and tuning can be repeated.\n"
    "\n"
    "Examples:\n"
    "  coterie finetune DIR --data notes.jsonl --placement p.json --pruning pruning.json --out t1\n"
    "  coterie finetune t1/model --data notes.jsonl --placement t1/placement.json \\\n"
    "      --pruning t1/pruning.json --out t2                       # place, tune, place\n"
    "  coterie finetune DIR --data a.txt --mode lora --lora-rank 8 --steps 200 --out out\n"
    "  coterie finetune --resume out";

struct FinetuneFlags {
  std::string model;
  std::vector<std::string> data;
  std::vector<std::string> held_out;
  std::string out;
  std::string resume;
  std::string mode = "full";
  std::string dtype = "fp32";
  training::Recipe recipe;
  DriftFlags drift;
  LaunchFlags launch;
};

std::vector<training::TextSource> sources_of(const std::vector<std::string>& files) {
  std::vector<training::TextSource> sources;
  for (const std::string& file : files) {
    sources.push_back(
        {fs::path(file).stem().string() + "-" + std::to_string(sources.size()), {file}, 1});
  }
  return sources;
}

TrainJob new_job(const FinetuneFlags& flags) {
  COTERIE_REQUIRE(!flags.model.empty() && !flags.data.empty(),
                  "give a model's folder and --data FILE, or --resume DIR");
  COTERIE_REQUIRE(flags.recipe.tune.pruning.empty() || !flags.recipe.tune.placement.empty(),
                  "--pruning needs the --placement that it was made for");
  TrainJob job;
  job.recipe = flags.recipe;
  training::Recipe& recipe = job.recipe;
  recipe.name = "finetune";
  recipe.about = "fine-tuning of " + flags.model;
  recipe.tune.mode = training::tune_mode_of(flags.mode);
  recipe.dtype = flags.dtype;
  recipe.model = read_json_file(fs::path(flags.model) / "config.json");
  recipe.start_from = flags.model;
  recipe.data.tokenizer = flags.model;
  recipe.data.sources = sources_of(flags.data);
  recipe.data.held_out = sources_of(flags.held_out);
  recipe.micro_batch_sequences = std::min(recipe.micro_batch_sequences, recipe.batch_sequences);
  return job;
}

TrainJob resumed_job(const FinetuneFlags& flags) {
  TrainJob job;
  job.run.resume = training::find_checkpoint(flags.resume);
  const fs::path file = job.run.resume / training::kTrainerFile;
  const Json state = read_json_file(file);
  job.recipe =
      training::read_recipe(JsonReader(state, file.string()).at("recipe").value(), file.string());
  return job;
}

void fit_layout(TrainJob& job, FinetuneFlags& flags) {
  training::LayoutRecipe& layout = job.recipe.layout;
  const comm::RankEnvironment environment = comm::read_rank_environment();
  std::int64_t count = flags.launch.num_processes;
  if (count == 0) {
    count = environment.size > 1 ? environment.size : layout.world_size();
    flags.launch.num_processes = static_cast<int>(count);
  }
  if (layout == training::LayoutRecipe{} && count > 1) {
    layout.data = count;
    if (job.recipe.tune.placement.empty()) {
      layout.expert = std::gcd(count, training::config_of(job.recipe).model.num_experts);
    } else {  // a rank a device, or every rank stands for all of them
      const auto devices = placement::read_placement(job.recipe.tune.placement).num_devices();
      layout.expert = devices == count ? count : 1;
    }
  }
  COTERIE_REQUIRE(layout.world_size() == count, "the run needs ", layout.world_size(),
                  " processes, there are ", count, " (--nproc)");
  static_cast<void>(training::layout_of(job.recipe));
  static_cast<void>(training::data_bytes(job.recipe, job.paths));
}

fs::path find_out(const FinetuneFlags& flags, const TrainJob& job) {
  if (flags.out.empty() && !job.run.resume.empty()) {
    return fs::absolute(job.run.resume).parent_path().parent_path();
  }
  COTERIE_REQUIRE(!flags.out.empty(), "--out is required");
  COTERIE_REQUIRE(!job.run.resume.empty() || training::CheckpointFolder(flags.out).steps().empty(),
                  flags.out, ": there are checkpoints of a run already; go on with --resume ",
                  flags.out);
  return flags.out;
}

/// Writes OUT/model and OUT/adapter.
void export_model(training::Model& model, const training::Workplace& place, const fs::path& out) {
  const fs::path& tokenizer = place.data.tokenizer_folder();
  training::write_model(
      out / "model", model.exported_parameters(),
      [&](const fs::path& folder) {
        model.write_exported_description(folder);
        for (const char* name : {"tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json", "generation_config.json"}) {
          if (fs::exists(tokenizer / name)) {
            fs::copy_file(tokenizer / name, folder / name);
          }
        }
      },
      place.world, place.progress);
  if (place.recipe.tune.mode != training::TuneMode::kLora) {
    return;
  }
  const fs::path adapter = out / "adapter";
  if (place.world.rank() == 0) {
    fs::create_directories(adapter);
    training::write_adapter_config(adapter, place.recipe.tune.lora, model.parameters(),
                                   place.recipe.start_from);
  }
  training::write_tensors(adapter / "adapter_model.safetensors", model.parameters(), place.world,
                          place.progress);
}

void finetune(FinetuneFlags flags, Console& console) {
  TrainJob job = flags.resume.empty() ? new_job(flags) : resumed_job(flags);
  job.paths = {fs::current_path(), COTERIE_DEMO_DIR};
  training::make_absolute(job.recipe, job.paths);
  fit_layout(job, flags);
  job.run.out = find_out(flags, job);
  job.num_threads = threads_of_rank(flags.launch, comm::read_rank_environment());
  flags.launch.passes_interrupts = true;
  bool is_complete = false;
  job.on_complete = [&](training::Model& model, const training::Workplace& place) {
    export_model(model, place, job.run.out);
    is_complete = true;
  };
  run_on_ranks(flags.launch, console, [&](comm::Communicator& world) {
    const int code = run_train_job(job, world, console);
    if (code == 0 && is_complete && world.rank() == 0) {
      report_drift(job, flags.drift, console);
    }
    return code;
  });
}

void add_training_flags(CLI::App& command, FinetuneFlags& flags) {
  training::Recipe& recipe = flags.recipe;
  recipe.rate = {training::RateShape::kCosine, 2e-5, 10, 0.1, 0.5};
  recipe.optimizer.weight_decay = 0.01;
  recipe.optimizer.beta2 = 0.999;
  recipe.evaluate_every = 50;
  command.add_option("--steps", recipe.num_steps, "optimizer steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--rate", recipe.rate.peak, "highest learning rate")->capture_default_str();
  command.add_option("--warmup", recipe.rate.warmup_steps, "steps of rising rate")
      ->capture_default_str();
  command.add_option("--sequence-length", recipe.sequence_length, "tokens of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--batch", recipe.batch_sequences, "sequences a step, of all processes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--micro-batch", recipe.micro_batch_sequences, "sequences computed at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--balance", recipe.gate.balance.load_balance,
                  "coefficient of the load balance loss, on the unpruned router")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--checkpoint-every", recipe.checkpoint_every, "steps; 0: at the end alone")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--seed", recipe.seed, "of the data order and adapters")
      ->capture_default_str();
  command.add_option("--dtype", flags.dtype, "of the parameters; bf16 has fp32 master weights")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64"}))
      ->capture_default_str();
  command.add_flag("--recompute", recipe.recompute, "keep less for the backward pass");
}

}  // namespace

void add_finetune(CLI::App& app, Console& console) {
  CLI::App* command = app.add_subcommand(
      "finetune", "adapt a model to text and to a pruning policy; report how routing drifts");
  const auto flags = std::make_shared<FinetuneFlags>();
  training::TuneRecipe& tune = flags->recipe.tune;
  command->add_option("model", flags->model, "folder of the model");
  command->add_option("--data", flags->data, "files to train on: text, or JSON lines");
  command->add_option("--held-out", flags->held_out, "files to measure the loss on");
  command->add_option("--placement", tune.placement, "placement file");
  command->add_option("--pruning", tune.pruning, "policy file of coterie prune");
  command->add_option("--similarity", tune.similarity, "file of coterie similarity");
  command->add_option("--mode", flags->mode, "what learns")
      ->check(CLI::IsMember({"full", "router_frozen", "experts_only", "lora"}))
      ->capture_default_str();
  command->add_option("--lora-rank", tune.lora.rank, "of adapters")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--lora-alpha", tune.lora.alpha, "adapters count alpha / rank")
      ->capture_default_str();
  add_training_flags(*command, *flags);
  command->add_option("--out", flags->out, "folder of the run");
  command->add_option("--resume", flags->resume, "go on with the run in this folder");
  command
      ->add_option("--profile-tokens", flags->drift.profile_tokens,
                   "tokens of each file that the drift is measured on; 0: no report")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--horizon-tokens", flags->drift.horizon_tokens,
                   "tokens that a new placement is to serve")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_launch_flags(*command, flags->launch);
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { finetune(*flags, console); });
}

}  // namespace coterie::cli
