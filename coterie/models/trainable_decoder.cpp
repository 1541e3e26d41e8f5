// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_decoder.hpp"

#include <torch/csrc/autograd/autograd.h>

#include "coterie/base/error.hpp"
#include "coterie/models/decoder_stage.hpp"
#include "coterie/models/tensor_ledger.hpp"

namespace coterie::models {
namespace {

ParameterStore store_for(const TrainableConfig& config, parallel::Groups& groups,
                         const TrainableOptions& options) {
  check_trainable_config(config);
  return {config, groups, at::TensorOptions().dtype(options.type).device(options.device), {}};
}

/// A micro-batch on its way through the stage.
struct Flight {
  StageTokens tokens;
  at::Tensor input;  // from the stage before; leaf
  StageOutput output;
};

}  // namespace

class TrainableDecoder::State {
 public:
  State(const TrainableConfig& config, parallel::Groups& groups, const TrainableOptions& options)
      : config_(config),
        options_(options),
        groups_(groups),
        store_(store_for(config_, groups, options_)),
        stage_(std::make_shared<DecoderStage>(store_, options_)) {
    for (TrainableParameter& parameter : store_.parameters) {
      begin_parameter(parameter, options_.seed);
    }
  }

  const TrainableConfig config_;
  const TrainableOptions options_;
  parallel::Groups& groups_;
  ParameterStore store_;
  std::shared_ptr<DecoderStage> stage_;

  StepResult run(std::span<const MicroBatch> batches, std::uint64_t step, bool training);
  void reduce_gradients();

 private:
  void forward(Flight& flight);
  void backward(Flight& flight);
  at::Tensor finish_loss(Flight& flight);
  void keep_first_shard_biases();
  void add_number(double& sum, const at::Tensor& number);
  void read_numbers();
  StepResult summed_result();

  // Of the step under way.
  StepCounts counts_;
  double loss_sum_ = 0;
  double aux_loss_ = 0;
  std::vector<LayerStatistics> statistics_;
  std::vector<std::pair<double*, at::Tensor>> unread_;  // sums and what is still to be added
  RotaryTables tables_;
};

/// Adds a number to a sum of the step; where it lies on a GPU, at the end of the step, so that
/// nothing waits for the GPU before.
void TrainableDecoder::State::add_number(double& sum, const at::Tensor& number) {
  if (number.is_cpu()) {
    sum += number.item<double>();
  } else {
    unread_.emplace_back(&sum, number.detach().to(at::kDouble));
  }
}

/// Waits for the GPU, if there is one, and adds what it found to the sums and statistics.
void TrainableDecoder::State::read_numbers() {
  if (!unread_.empty()) {
    std::vector<at::Tensor> numbers;
    for (const auto& [sum, number] : unread_) {
      numbers.push_back(number);
    }
    const at::Tensor all = at::stack(numbers).to(at::kCPU);
    for (std::size_t i = 0; i < unread_.size(); ++i) {
      *unread_[i].first += all.const_data_ptr<double>()[i];
    }
    unread_.clear();
  }
  for (LayerStatistics& layer : statistics_) {
    for (const at::Tensor& counts : layer.unread) {
      gates::add_counts(layer.routing, counts);
    }
    layer.unread.clear();
  }
}

void TrainableDecoder::State::forward(Flight& flight) {
  if (stage_->is_first()) {
    flight.input = stage_->embed(flight.tokens);
  } else {
    comm::Communicator& before = *groups_.previous_stage();
    const std::int64_t rows = flight.tokens.token_ids.numel();
    flight.input = receive_rows({rows, config_.model.hidden_size}, store_.options, before);
    flight.input.requires_grad_(at::GradMode::is_enabled());
  }
  flight.output = stage_->run_layers(flight.input, flight.tokens, statistics_);
  for (const at::Tensor& aux : flight.output.aux_losses) {
    add_number(aux_loss_, aux);
  }
  if (!stage_->is_last()) {
    send_rows(flight.output.h, *groups_.next_stage());
  }
}

/// This rank's part of the mean loss of the step, without auxiliary losses; last stage.
at::Tensor TrainableDecoder::State::finish_loss(Flight& flight) {
  const at::Tensor sum = stage_->loss_sum(flight.output.h, flight.tokens);
  add_number(loss_sum_, sum);
  return sum / static_cast<double>(std::max<std::int64_t>(1, counts_.num_targets));
}

void TrainableDecoder::State::backward(Flight& flight) {
  torch::autograd::variable_list roots;
  torch::autograd::variable_list gradients;
  if (stage_->is_last()) {
    at::Tensor loss = finish_loss(flight);
    gradients.push_back(at::ones_like(loss));
    roots.push_back(std::move(loss));
  } else {
    gradients.push_back(
        receive_rows(flight.output.h.sizes(), store_.options, *groups_.next_stage()));
    roots.push_back(flight.output.h);
  }
  for (const at::Tensor& aux : flight.output.aux_losses) {
    if (aux.requires_grad()) {
      gradients.push_back(at::ones_like(aux));
      roots.push_back(aux);
    }
  }
  torch::autograd::backward(roots, gradients);
  if (!stage_->is_first()) {
    send_rows(flight.input.grad(), *groups_.previous_stage());
  }
  flight = {};
}

StepResult TrainableDecoder::State::run(std::span<const MicroBatch> batches, std::uint64_t step,
                                        bool training) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    check_micro_batch(batches[i], i, config_.model);
  }
  counts_ = count_step(batches, groups_);
  loss_sum_ = 0;
  aux_loss_ = 0;
  statistics_.clear();
  unread_.clear();
  for (const auto& block : stage_->blocks()) {
    if (block->moe() != nullptr) {
      statistics_.push_back({block->layer(), {}, 0, 0, {}});
    }
  }
  const bool has_stages = groups_.layout().options().pipeline > 1;
  std::vector<Flight> flights(batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    flights[i].tokens =
        stage_tokens(batches[i], config_, options_, groups_, counts_, {step, training, tables_});
    forward(flights[i]);
    if (!training) {
      if (stage_->is_last()) {
        static_cast<void>(finish_loss(flights[i]));
      }
      flights[i] = {};
    } else if (!has_stages) {
      backward(flights[i]);
    }
  }
  for (std::size_t i = 0; training && has_stages && i < batches.size(); ++i) {
    backward(flights[i]);
  }
  if (training) {
    keep_first_shard_biases();
  }
  read_numbers();
  return summed_result();
}

/// An output bias of an expert has its whole gradient on every shard, and counts once.
void TrainableDecoder::State::keep_first_shard_biases() {
  for (const TrainableParameter& parameter : store_.parameters) {
    if (parameter.kind == parallel::ParameterKind::kExpertBias &&
        groups_.coordinates().expert_shard > 0 && parameter.value.grad().defined()) {
      parameter.value.grad().zero_();
    }
  }
}

/// Sums what the ranks saw over the world: one message.
StepResult TrainableDecoder::State::summed_result() {
  const std::vector<std::int32_t>& layers = config_.model.moe_layers;
  constexpr std::size_t kCounts = 7;
  const auto num_experts = static_cast<std::size_t>(config_.model.num_experts);
  const std::size_t width = kCounts + num_experts * (options_.pruning ? 2 : 1);
  std::vector<std::int64_t> table(layers.size() * width);
  for (const LayerStatistics& own : statistics_) {
    const auto place = std::ranges::lower_bound(layers, own.layer) - layers.begin();
    std::int64_t* line = table.data() + static_cast<std::size_t>(place) * width;
    const gates::RoutingStatistics& routing = own.routing;
    for (const std::int64_t value :
         {own.bytes_sent, own.rows_sent, routing.num_tokens, routing.num_dropped_picks,
          routing.num_dropped_tokens, routing.num_bad_tokens, routing.num_pruned_tokens}) {
      *line++ = value;
    }
    line = std::ranges::copy(routing.picks_per_expert, line).out;
    std::ranges::copy(routing.unpruned_picks_per_expert, line);
  }
  comm::Communicator& world = groups_.world();
  parallel::all_reduce(world, {table.data(), std::ssize(table), parallel::SumType::kInt64},
                       comm::Purpose::kControl);
  std::array<double, 2> losses = {loss_sum_, aux_loss_};
  parallel::all_reduce(world, {losses.data(), 2, parallel::SumType::kFloat64},
                       comm::Purpose::kControl);
  StepResult result;
  result.loss_sum = losses[0];
  result.aux_loss = losses[1];
  result.num_targets = counts_.num_targets;
  result.num_tokens = counts_.num_tokens;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t* line = table.data() + i * width;
    LayerStatistics layer{layers[i], {}, line[0], line[1], {}};
    layer.routing.num_tokens = line[2];
    layer.routing.num_dropped_picks = line[3];
    layer.routing.num_dropped_tokens = line[4];
    layer.routing.num_bad_tokens = line[5];
    layer.routing.num_pruned_tokens = line[6];
    const std::int64_t* const picks = line + kCounts;
    layer.routing.picks_per_expert.assign(picks, picks + num_experts);
    layer.routing.unpruned_picks_per_expert.assign(picks + num_experts, line + width);
    result.layers.push_back(std::move(layer));
  }
  return result;
}

void TrainableDecoder::State::reduce_gradients() {
  for (const TrainableParameter& parameter : store_.parameters) {
    at::Tensor value = parameter.value;
    if (!value.requires_grad()) {  // frozen
      continue;
    }
    if (!value.grad().defined()) {
      value.mutable_grad() = at::zeros_like(value);
    }
    at::Tensor gradient = value.grad().contiguous();
    sum_in_place(gradient, groups_.group(parallel::reduce_group(parameter.kind)),
                 comm::Purpose::kGradient);
    value.mutable_grad() = gradient;
  }
}

TrainableDecoder::TrainableDecoder(const TrainableConfig& config, parallel::Groups& groups,
                                   const TrainableOptions& options)
    : state_(std::make_unique<State>(config, groups, options)) {}

TrainableDecoder::~TrainableDecoder() = default;

const TrainableConfig& TrainableDecoder::config() const {
  return state_->config_;
}

const TrainableOptions& TrainableDecoder::options() const {
  return state_->options_;
}

parallel::Groups& TrainableDecoder::groups() const {
  return state_->groups_;
}

std::span<TrainableParameter> TrainableDecoder::parameters() const {
  return state_->store_.parameters;
}

parallel::ReduceTable TrainableDecoder::reduce_table() const {
  parallel::ReduceTable table;
  for (const TrainableParameter& parameter : state_->store_.parameters) {
    table.push_back(parallel::reduce_entry(
        parameter.name, parameter.kind, parameter.value.sizes().vec(), state_->groups_.layout()));
  }
  return table;
}

void TrainableDecoder::load(const Checkpoint& checkpoint) {
  for (TrainableParameter& parameter : state_->store_.parameters) {
    read_parameter(parameter, checkpoint);
  }
}

StepResult TrainableDecoder::forward_backward(std::span<const MicroBatch> micro_batches,
                                              std::uint64_t step) {
  const at::AutoGradMode with_gradients(true);
  return state_->run(micro_batches, step, true);
}

StepResult TrainableDecoder::evaluate(std::span<const MicroBatch> micro_batches) {
  const at::NoGradGuard no_gradients;
  return state_->run(micro_batches, 0, false);
}

void TrainableDecoder::reduce_gradients() {
  state_->reduce_gradients();
}

void TrainableDecoder::zero_gradients() {
  for (const TrainableParameter& parameter : state_->store_.parameters) {
    at::Tensor value = parameter.value;
    value.mutable_grad() = at::Tensor();
  }
}

void TrainableDecoder::update_selection_biases(const StepResult& step) {
  for (const auto& block : state_->stage_->blocks()) {
    if (block->moe() == nullptr) {
      continue;
    }
    for (const LayerStatistics& layer : step.layers) {
      if (layer.layer == block->layer()) {
        block->moe()->gate().update_selection_bias(layer.routing.router_picks());
      }
    }
  }
}

}  // namespace coterie::models
