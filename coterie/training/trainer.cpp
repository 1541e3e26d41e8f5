// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/training/checkpoint_folder.hpp"
#include "coterie/training/gradient_norm.hpp"
#include "coterie/training/machine.hpp"
#include "coterie/training/state_files.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What ranks tell each other once a step.
struct RankNote {
  std::uint64_t bytes_sent = 0;
  std::int64_t peak_memory_bytes = 0;
  std::uint64_t wants_to_stop = 0;
};

RankNote exchange_notes(const RankNote& mine, comm::Communicator& world) {
  std::vector<RankNote> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                   comm::Purpose::kControl);
  RankNote sum;
  for (const RankNote& note : all) {
    sum.bytes_sent += note.bytes_sent;
    sum.peak_memory_bytes = std::max(sum.peak_memory_bytes, note.peak_memory_bytes);
    sum.wants_to_stop |= note.wants_to_stop;
  }
  return sum;
}

class Run {
 public:
  Run(const Workplace& place, const RunOptions& options)
      : place_(place),
        options_(options),
        recipe_(place.recipe),
        folder_(options.out),
        optimizer_(place.model.parameters(), recipe_.optimizer) {
    if (options.resume.empty()) {
      place_.model.zero_gradients();
    } else {
      resume();
    }
    result_.first_step = result_.last_step = step_;
    if (is_root()) {
      std::error_code ignored;
      fs::create_directories(options.out, ignored);
      write_json_file(options.out / "recipe.json", to_json(recipe_));
      metrics_.emplace(options.out / "metrics.jsonl", step_);
    }
    peak_flops_ = peak_flops_of_ranks(recipe_.peak_gflops * 1e9, device_of_model(), place_.world);
  }

  RunResult run() {
    place_.progress.begin("training", recipe_.num_steps);
    bool is_stopped = false;
    while (step_ < recipe_.num_steps && !is_stopped) {
      is_stopped = train_step() || step_ == options_.stop_after;
      const bool is_last = step_ == recipe_.num_steps || is_stopped;
      const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
      if (due(recipe_.evaluate_every) || (is_last && recipe_.evaluate_every > 0)) {
        evaluate();
      }
      if (due(recipe_.checkpoint_every) || is_last) {
        write_checkpoint();
      }
      place_.progress.update(step_);
    }
    place_.progress.end();
    result_.last_step = step_;
    result_.is_complete = step_ == recipe_.num_steps;
    if (timed_s_ > 0) {
      result_.mean_tokens_per_s = static_cast<double>(timed_tokens_) / timed_s_;
    }
    return result_;
  }

 private:
  [[nodiscard]] bool is_root() const { return place_.world.rank() == 0; }

  void resume() {
    const Json state = read_state(options_.resume, optimizer_, place_.world);
    const std::string file = (options_.resume / kTrainerFile).string();
    const JsonReader reader(state, file);
    step_ = reader.at("step").as_int(0);
    num_sequences_ = reader.at("num_sequences").as_int(0);
    num_tokens_ = reader.at("num_tokens").as_int(0);
    const Json data = place_.data.description();
    COTERIE_REQUIRE(reader.at("data").value() == data, file,
                    ": the run was trained on other data (", reader.at("data").value().dump(),
                    "), now it is ", data.dump());
    COTERIE_REQUIRE(step_ <= recipe_.num_steps, file, ": ", step_,
                    " steps are done already, the recipe has ", recipe_.num_steps);
    result_.checkpoint = options_.resume;
  }

  StepInput next_input() {
    StepInput input;
    const std::int64_t count = recipe_.batch_sequences;
    input.micro_batches = place_.data.batch(num_sequences_, count, place_.share);
    input.num_targets = count * recipe_.sequence_length;
    input.num_sequences = count;
    input.seed = recipe_.seed;
    input.step = static_cast<std::uint64_t>(step_);
    return input;
  }

  /// Of the memory that matters: the GPU's where the model is on one, else the process's.
  [[nodiscard]] std::int64_t peak_bytes() {
    const at::Device device = device_of_model();
    return device.is_cuda() ? device::memory_of(device).peak_bytes : peak_memory_bytes();
  }
  [[nodiscard]] at::Device device_of_model() {
    const std::span<Parameter> parameters = place_.model.parameters();
    return parameters.empty() ? at::Device(at::kCPU) : parameters[0].value.device();
  }

  /// True if a rank wants to stop.
  bool train_step() {
    const double start = now_s();
    const std::uint64_t sent_before = place_.model.bytes_sent();
    Model& model = place_.model;
    model.zero_gradients();
    const StepInput input = next_input();
    const StepResult result = model.forward_backward(input);
    StepMetrics m;
    m.loss = result.loss_sum / static_cast<double>(input.num_targets);
    m.aux_loss = result.aux_loss;
    model.sum_gradients();
    m.rate = recipe_.rate.at(step_, recipe_.num_steps);
    const bool on_gpu =
        !recipe_.optimizer.reference && is_on_one_gpu(model.parameters(), place_.world);
    if (on_gpu) {
      // Queued at once: the step does nothing if the norm turns out not to be a number.
      const GpuNorm norm = gpu_gradient_norm(model.parameters(), recipe_.clip_norm);
      optimizer_.step(m.rate, norm.factor);
      m.gradient_norm = norm.norm.item<double>();
    } else {
      m.gradient_norm = global_gradient_norm(model.parameters(), place_.world);
    }
    COTERIE_REQUIRE(std::isfinite(m.loss) && std::isfinite(m.gradient_norm), "step ", step_ + 1,
                    ": loss ", m.loss, ", gradient norm ", m.gradient_norm,
                    ": training has diverged (a lower rate.peak may help); the last checkpoint is "
                    "that of before");
    m.clip_factor = clip_factor(m.gradient_norm, recipe_.clip_norm);
    if (!on_gpu) {
      optimizer_.step(m.rate, m.clip_factor);
    }
    model.after_step(result);
    ++step_;
    num_sequences_ += input.num_sequences;
    num_tokens_ += input.num_targets;

    RankNote note{model.bytes_sent() - sent_before, peak_bytes(),
                  options_.should_stop && options_.should_stop() ? 1U : 0U};
    note = exchange_notes(note, place_.world);
    fill_metrics(m, result, note, now_s() - start);
    return note.wants_to_stop != 0;
  }

  void fill_metrics(StepMetrics& m, const StepResult& result, const RankNote& note,
                    double seconds) {
    const auto targets = static_cast<double>(result.num_targets);
    m.step = step_;
    m.num_tokens = num_tokens_;
    m.seconds = seconds;
    m.tokens_per_s = targets / seconds;
    m.mfu = 3 * place_.model.size().flops_per_token * m.tokens_per_s / peak_flops_;
    std::int64_t rows = 0;
    std::int64_t tokens = 0;
    double device_imbalance = 0;
    for (const LayerLoad& layer : result.layers) {
      m.imbalance.push_back(layer.imbalance());
      device_imbalance += layer.device_imbalance(recipe_.layout.expert);
      m.num_dropped += layer.num_dropped;
      rows += layer.num_rows;
      tokens += layer.num_tokens;
    }
    if (!result.layers.empty()) {
      m.device_imbalance = device_imbalance / static_cast<double>(result.layers.size());
    }
    m.replicas_per_token = tokens > 0 ? static_cast<double>(rows) / static_cast<double>(tokens) : 0;
    m.bytes_sent = note.bytes_sent;
    m.peak_memory_bytes = note.peak_memory_bytes;
    if (step_ > result_.first_step + 1) {  // the first step also pays for warming up
      timed_s_ += seconds;
      timed_tokens_ += result.num_targets;
    }
    result_.last = m;
    if (metrics_) {
      metrics_->append(to_json(m));
      if (options_.on_step) {
        options_.on_step(m);
      }
    }
  }

  void evaluate() {
    EvaluationMetrics metrics;
    metrics.step = step_;
    double loss_sum = 0;
    std::int64_t num_targets = 0;
    for (const auto& held : place_.data.held_out(recipe_.evaluation_sequences, place_.share)) {
      const LossSum sum = place_.model.evaluate(held.batches);
      const double loss = sum.loss_sum / static_cast<double>(sum.num_targets);
      const double bits =
          held.bytes_per_target > 0 ? loss / std::numbers::ln2 / held.bytes_per_target : 0;
      metrics.sources.push_back({held.name, loss, bits});
      loss_sum += sum.loss_sum;
      num_targets += sum.num_targets;
    }
    if (num_targets == 0) {
      return;
    }
    metrics.loss = loss_sum / static_cast<double>(num_targets);
    result_.held_out = metrics;
    if (metrics_) {
      metrics_->append(to_json(metrics));
      if (options_.on_evaluation) {
        options_.on_evaluation(metrics);
      }
    }
  }

  void write_description(const fs::path& folder) const {
    place_.model.write_description(folder);
    const fs::path& tokenizer = place_.data.tokenizer_folder();
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                             "generation_config.json"}) {
      if (!tokenizer.empty() && fs::exists(tokenizer / name)) {
        fs::copy_file(tokenizer / name, folder / name);
      }
    }
  }

  void write_checkpoint() {
    const fs::path path = folder_.path_of(step_);
    if (path == result_.checkpoint) {
      return;
    }
    if (is_root()) {
      folder_.prepare(step_);
    }
    StateToWrite state;
    state.folder = path;
    state.optimizer = &optimizer_;
    state.trainer = {{"format", "coterie.trainer"},
                     {"version", 1},
                     {"step", step_},
                     {"num_sequences", num_sequences_},
                     {"num_tokens", num_tokens_},
                     {"data", place_.data.description()},
                     {"recipe", to_json(recipe_)}};
    state.write_description = [this](const fs::path& folder) { write_description(folder); };
    NoProgress silent;
    write_state(state, place_.world, silent);
    if (is_root()) {
      folder_.committed(step_, recipe_.keep_checkpoints);
    }
    result_.checkpoint = path;
  }

  const Workplace& place_;
  const RunOptions& options_;
  const Recipe& recipe_;
  CheckpointFolder folder_;
  AdamW optimizer_;
  std::optional<MetricsFile> metrics_;  ///< on rank 0
  RunResult result_;
  std::int64_t step_ = 0;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_tokens_ = 0;
  double peak_flops_ = 0;
  double timed_s_ = 0;
  std::int64_t timed_tokens_ = 0;
};

}  // namespace

RunResult run_training(const Workplace& place, const RunOptions& options) {
  return Run(place, options).run();
}

}  // namespace coterie::training
