// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/train_job.hpp"
#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/training/training.hpp"

namespace coterie::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    "A recipe is a JSON file or the name of a bundled one. --set changes single values; what is "
    "left\n"
    "out has a default that --print-config shows. Ctrl-C ends after the step, with a checkpoint.\n"
    "\n"
    "Examples:\n"
    "  coterie train --list\n"
    "  coterie train mixtral-toy --nproc 2 --out out/toy\n"
    "  coterie train olmoe-demo --device cuda --set compute.dtype=bf16\n"
    "  coterie train mixtral-toy --set steps=20 --set rate.peak=0.002\n"
    "  coterie train --resume out/toy --nproc 4\n"
    "  coterie train --print-config mixtral-toy > mine.json\n"
    "  coterie train mine.json --plan";

struct TrainFlags {
  std::string recipe;
  std::vector<std::string> settings;
  std::string resume;
  std::string out;
  std::string device;
  std::string kernels;
  std::int64_t stop_after = 0;
  bool print_config = false;
  bool plan = false;
  bool list = false;
  LaunchFlags launch;
};

void list_recipes(Console& console) {
  Json list = Json::array();
  std::string text;
  for (const std::string& name : training::bundled_recipes()) {
    const training::Recipe recipe =
        training::read_recipe(parse_json(training::bundled_recipe(name), name), "recipe " + name);
    list.push_back({{"name", name}, {"about", recipe.about}});
    text += name + std::string(name.size() < 16 ? 16 - name.size() : 1, ' ') + recipe.about + "\n";
  }
  console.print(text);
  console.emit({{"recipes", list}});
}

/// What the user gave: a file, a bundled name, or (with --resume alone) what the run was begun
/// with.
TrainJob find_job(const TrainFlags& flags) {
  TrainJob job;
  if (!flags.resume.empty()) {
    job.run.resume = training::find_checkpoint(flags.resume);
  }
  Json document;
  std::string source;
  fs::path folder = fs::current_path();
  if (!flags.recipe.empty() && fs::exists(flags.recipe)) {
    source = flags.recipe;
    document = read_json_file(source);
    folder = fs::absolute(source).parent_path();
  } else if (!flags.recipe.empty()) {
    source = "recipe " + flags.recipe;
    document = parse_json(training::bundled_recipe(flags.recipe), source);
  } else {
    COTERIE_REQUIRE(
        !flags.resume.empty(),
        "give a recipe (a file, or a name out of coterie train --list) or --resume DIR");
    source = (job.run.resume / training::kTrainerFile).string();
    const Json state = read_json_file(source);
    document = JsonReader(state, source).at("recipe").value();
  }
  // Reading before --set fills in the defaults, so that every value can be set.
  document = training::to_json(training::read_recipe(document, source));
  for (const std::string& setting : flags.settings) {
    training::set_value(document, setting);
  }
  if (!flags.device.empty()) {
    training::set_value(document, "compute.device=" + flags.device);
  }
  job.recipe = training::read_recipe(document, source);
  job.paths = {folder, COTERIE_DEMO_DIR};
  training::make_absolute(job.recipe, job.paths);
  return job;
}

/// --nproc, what a launcher started, or what the recipe's layout needs. A recipe for one rank is
/// spread over those that there are: data parallel, and experts over as many as divide them.
void fit_layout(TrainJob& job, TrainFlags& flags) {
  training::LayoutRecipe& layout = job.recipe.layout;
  const comm::RankEnvironment environment = comm::read_rank_environment();
  std::int64_t count = flags.launch.num_processes;
  if (count == 0) {
    count = environment.size > 1 ? environment.size : layout.world_size();
    flags.launch.num_processes = static_cast<int>(count);
  }
  if (layout == training::LayoutRecipe{} && count > 1) {
    layout.data = count;
    layout.expert = std::gcd(count, training::config_of(job.recipe).model.num_experts);
  }
  COTERIE_REQUIRE(layout.world_size() == count, "the recipe's layout needs pipeline ",
                  layout.pipeline, " x data ", layout.data, " x model ", layout.model, " = ",
                  layout.world_size(), " processes, there are ", count,
                  " (--nproc, or --set layout.data=...)");
  // What is wrong with the recipe is said before processes start.
  static_cast<void>(training::layout_of(job.recipe));
  static_cast<void>(training::config_of(job.recipe));
  if (!flags.plan) {
    static_cast<void>(training::data_bytes(job.recipe, job.paths));
  }
}

fs::path find_out(const TrainFlags& flags, const TrainJob& job) {
  if (flags.out.empty() && !job.run.resume.empty()) {
    const fs::path checkpoints = fs::absolute(job.run.resume).parent_path();
    COTERIE_REQUIRE(checkpoints.filename() == "checkpoints", "--resume ", flags.resume,
                    ": this checkpoint lies in no run's folder, so say --out DIR");
    return checkpoints.parent_path();
  }
  const fs::path out =
      flags.out.empty() ? fs::path("out") / "train" / job.recipe.name : fs::path(flags.out);
  COTERIE_REQUIRE(!job.run.resume.empty() || training::CheckpointFolder(out).steps().empty(),
                  out.string(), ": there are checkpoints of a run already; go on from them with ",
                  "--resume ", out.string(), ", or choose another --out");
  return out;
}

void train(TrainFlags flags, Console& console) {
  if (flags.list) {
    list_recipes(console);
    return;
  }
  TrainJob job = find_job(flags);
  if (flags.print_config) {
    // The recipe is a JSON document in any case.
    console.print(format_json(training::to_json(job.recipe)));
    console.emit(training::to_json(job.recipe));
    return;
  }
  fit_layout(job, flags);
  if (flags.plan) {
    print_plan(job, console);
    return;
  }
  static_cast<void>(device::parse_device(job.recipe.device, "compute.device"));
  if (!flags.kernels.empty()) {  // the ranks, which are started from here, inherit it
    setenv("COTERIE_GPU_KERNELS", flags.kernels.c_str(), 1);
  }
  job.run.out = find_out(flags, job);
  job.run.stop_after = flags.stop_after;
  job.num_threads = threads_of_rank(flags.launch, comm::read_rank_environment());
  flags.launch.passes_interrupts = true;
  run_on_ranks(flags.launch, console,
               [&](comm::Communicator& world) { return run_train_job(job, world, console); });
}

}  // namespace

void add_train(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("train", "train a model by a recipe, on one process or several");
  const auto flags = std::make_shared<TrainFlags>();
  command->add_option("recipe", flags->recipe, "a recipe's file, or the name of a bundled one");
  command
      ->add_option("--set", flags->settings,
                   "KEY=VALUE: changes a value, such as optimizer.beta2=0.99")
      ->allow_extra_args(false);
  command->add_option("--resume", flags->resume,
                      "go on from this run's newest checkpoint, or from this checkpoint");
  command->add_option("--out", flags->out,
                      "folder of the run: recipe.json, metrics.jsonl, checkpoints (default: "
                      "out/train/NAME)");
  command->add_option("--device", flags->device,
                      "where the model is trained: cpu, cuda (the first GPU) or cuda:N (default: "
                      "what the recipe says)");
  command
      ->add_option(
          "--kernels", flags->kernels,
          "expert kernels on a GPU: auto, hopper (wgmma; bf16 on compute capability 9.0) or "
          "generic (mma.sync; any GPU from 8.0)")
      ->check(CLI::IsMember({"auto", "hopper", "generic"}));
  command
      ->add_option("--stop-after", flags->stop_after,
                   "end after so many steps in all, with a checkpoint")
      ->check(CLI::PositiveNumber);
  command->add_flag("--print-config", flags->print_config,
                    "print the whole recipe, all defaults filled in, and do nothing");
  command->add_flag("--plan", flags->plan, "print the memory that a rank needs, and do nothing");
  command->add_flag("--list", flags->list, "list the bundled recipes");
  add_launch_flags(*command, flags->launch);
  add_shared_flags(*command, console);
  command->footer(kFooter);
  command->callback([flags, &console] { train(*flags, console); });
}

}  // namespace coterie::cli
