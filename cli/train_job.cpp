// SPDX-License-Identifier: Apache-2.0
#include "cli/train_job.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

volatile std::sig_atomic_t stop_is_wanted = 0;

extern "C" void want_stop(int /*signal*/) {
  stop_is_wanted = 1;
}

/// From now on Ctrl-C, SIGTERM and SIGUSR1 (which mpirun hands on) ask for an end after the step.
/// The second SIGINT ends at once.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = want_stop;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags |= static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

template <std::size_t kSize = 256, typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, kSize> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::string to_text(const training::StepMetrics& step) {
  const double worst = step.imbalance.empty() ? 1 : *std::ranges::max_element(step.imbalance);
  return format(
      "step %lld: loss %.4f, gradient norm %.3g, rate %.3g, %.0f tokens/s, MFU %.1f%%, "
      "imbalance %.2f\n",
      static_cast<long long>(step.step), step.loss, step.gradient_norm, step.rate,
      step.tokens_per_s, 100 * step.mfu, worst);
}

std::string to_text(const training::EvaluationMetrics& evaluation) {
  std::string text = format("step %lld: held-out loss %.4f",
                            static_cast<long long>(evaluation.step), evaluation.loss);
  for (const auto& source : evaluation.sources) {
    text += source.bits_per_byte > 0
                ? format(", %s %.3f bits/byte", source.name.c_str(), source.bits_per_byte)
                : format(", %s %.4f", source.name.c_str(), source.loss);
  }
  return text + "\n";
}

Json to_json(const training::RunResult& result, const TrainJob& job) {
  Json document = {{"recipe", job.recipe.name},
                   {"first_step", result.first_step},
                   {"last_step", result.last_step},
                   {"complete", result.is_complete},
                   {"checkpoint", result.checkpoint.string()},
                   {"metrics", (job.run.out / "metrics.jsonl").string()},
                   {"tokens_per_s", result.mean_tokens_per_s},
                   {"last", training::to_json(result.last)}};
  if (result.held_out) {
    document["held_out"] = training::to_json(*result.held_out)["held_out"];
  }
  return document;
}

std::string summary(const training::RunResult& result, const TrainJob& job) {
  std::string text = format<1024>("%lld of %lld steps done, %.0f tokens/s; checkpoint: %s\n",
                                  static_cast<long long>(result.last_step),
                                  static_cast<long long>(job.recipe.num_steps),
                                  result.mean_tokens_per_s, result.checkpoint.c_str());
  if (!result.is_complete) {
    text += "go on with: coterie train --resume " + job.run.out.string() + "\n";
  }
  return text;
}

}  // namespace

int run_train_job(const TrainJob& job, comm::Communicator& world, Console& console) {
  catch_signals();
  at::set_num_threads(job.num_threads);
  kernels::Threads pool(job.num_threads);
  kernels::Execution execution;
  execution.threads = &pool;
  const bool is_root = world.rank() == 0;
  NoProgress silent;
  Progress& progress = is_root ? static_cast<Progress&>(console) : silent;
  const training::Recipe& recipe = job.recipe;
  training::TrainingData data(recipe, job.paths, progress);
  parallel::Groups groups(world, training::layout_of(recipe));
  const auto start_from = job.run.resume.empty() && !recipe.start_from.empty()
                              ? job.paths.resolve(recipe.start_from)
                              : std::filesystem::path();
  const auto model = training::make_decoder_model(recipe, groups, execution, start_from);
  training::RunOptions options = job.run;
  options.should_stop = [] { return stop_is_wanted != 0; };
  const std::int64_t every = std::max<std::int64_t>(1, recipe.num_steps / 20);
  options.on_step = [&](const training::StepMetrics& step) {
    if (step.step % every == 0) {
      console.print(to_text(step));
    }
  };
  options.on_evaluation = [&](const training::EvaluationMetrics& evaluation) {
    console.print(to_text(evaluation));
  };
  const training::DataShare share{groups.coordinates().data, groups.layout().options().data};
  const training::Workplace place{recipe, *model, data, world, share, progress};
  const training::RunResult result = training::run_training(place, options);
  if (result.is_complete && job.on_complete) {
    job.on_complete(*model, place);
  }
  if (is_root) {
    console.print(summary(result, job));
    console.emit(to_json(result, job));
  }
  return 0;
}

void print_plan(const TrainJob& job, Console& console) {
  std::int64_t data_bytes = 0;
  try {
    data_bytes = training::data_bytes(job.recipe, job.paths);
  } catch (const Error& error) {
    console.warn(std::string(error.what()) + "; the plan leaves the text's tokens out");
  }
  const training::MemoryPlan plan = training::plan_memory(job.recipe, data_bytes);
  console.print(training::to_text(plan));
  console.emit(training::to_json(plan));
}

}  // namespace coterie::cli
