// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/decoder_model.hpp"

#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/training/lora.hpp"
#include "coterie/training/state_files.hpp"

namespace coterie::training {
namespace {

at::ScalarType scalar_type_named(const std::string& dtype) {
  return dtype == "fp64" ? at::kDouble : dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

/// transformers' name of a type.
const char* torch_name(const std::string& dtype) {
  return dtype == "fp64" ? "float64" : dtype == "bf16" ? "bfloat16" : "float32";
}

/// Placement and pruning policy of the recipe; checked against the model that it starts from.
void add_placement(models::TrainableOptions& options, const Recipe& recipe) {
  const TuneRecipe& tune = recipe.tune;
  if (tune.placement.empty()) {
    return;
  }
  const placement::Placement placement = placement::read_placement(tune.placement);
  const models::ModelConfig model = config_of(recipe).model;
  std::string fingerprint = placement.model_fingerprint;
  if (!recipe.start_from.empty() && !fingerprint.empty()) {
    fingerprint = models::model_fingerprint(models::Checkpoint(recipe.start_from),
                                            models::read_model_config(recipe.start_from));
  }
  options.placements = models::layer_placements(placement, model, fingerprint);
  if (tune.pruning.empty()) {
    return;
  }
  options.pruning = pruning::read_policy(tune.pruning);
  if (!tune.similarity.empty()) {
    options.similarity = pruning::read_similarity(tune.similarity);
  }
  pruning::check_same_model(*options.pruning, placement,
                            options.similarity ? &*options.similarity : nullptr);
}

models::TrainableOptions options_of(const Recipe& recipe, const kernels::Execution& execution) {
  models::TrainableOptions options;
  options.type = scalar_type_named(recipe.dtype);
  options.device = device::parse_device(recipe.device, "compute.device");
  if (options.device.is_cuda()) {
    constexpr std::int64_t kRowsOfLogits = 16384;  // one product for the head where memory allows
    options.loss_chunk = kRowsOfLogits;
  }
  options.seed = recipe.seed;
  options.gate = recipe.gate;
  options.order = recipe.order;
  options.forward_chunks = static_cast<int>(recipe.forward_chunks);
  options.backward_chunks = static_cast<int>(recipe.backward_chunks);
  options.recompute = recipe.recompute;
  options.execution = execution;
  options.reference = recipe.reference;
  add_placement(options, recipe);
  return options;
}

models::MicroBatch to_decoder(const MicroBatch& batch) {
  models::MicroBatch result;
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> targets;
  result.sequence_offsets = {0};
  for (const std::vector<std::int32_t>& sequence : batch.sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end() - 1);
    targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
    result.sequence_offsets.push_back(std::ssize(ids));
  }
  result.token_ids = at::tensor(ids, at::kLong);
  result.targets = at::tensor(targets, at::kLong);
  result.sequence_numbers = batch.numbers;
  return result;
}

std::vector<models::MicroBatch> to_decoder(std::span<const MicroBatch> batches) {
  std::vector<models::MicroBatch> result;
  for (const MicroBatch& batch : batches) {
    result.push_back(to_decoder(batch));
  }
  return result;
}

/// What a run with that mode leaves as it is.
bool is_frozen(const models::TrainableParameter& parameter, TuneMode mode) {
  switch (mode) {
    case TuneMode::kRouterFrozen: return parameter.is_router;
    case TuneMode::kExpertsOnly: return !parameter.is_expert();
    case TuneMode::kFull:
    case TuneMode::kLora: return false;  // adapters freeze on their own
  }
  return false;
}

class DecoderModel final : public Model {
 public:
  DecoderModel(const Recipe& recipe, parallel::Groups& groups, const kernels::Execution& execution)
      : groups_(groups),
        config_json_(recipe.model),
        decoder_(config_of(recipe), groups, options_of(recipe, execution)),
        size_(size_of(decoder_.config(), recipe.sequence_length)) {
    config_json_["dtype"] = torch_name(recipe.dtype);
    for (const models::TrainableParameter& theirs : decoder_.parameters()) {
      Parameter parameter;
      parameter.name = theirs.name;
      parameter.value = theirs.value;
      parameter.pieces = theirs.pieces;
      comm::Communicator& group = groups.group(parallel::reduce_group(theirs.kind));
      parameter.replicas = group.size() > 1 ? &group : nullptr;
      parameter.is_expert = theirs.is_expert();
      parameter.has_decay = theirs.has_decay;
      parameter.is_frozen = is_frozen(theirs, recipe.tune.mode);
      parameter.value.requires_grad_(!parameter.is_frozen);
      check_pieces(parameter.name, parameter.pieces, parameter.value);
      parameters_.push_back(std::move(parameter));
    }
    decoder_.zero_gradients();
  }

  std::span<Parameter> parameters() override { return parameters_; }

  StepResult forward_backward(const StepInput& input) override {
    last_ = decoder_.forward_backward(to_decoder(input.micro_batches), input.step);
    StepResult result;
    result.loss_sum = last_.loss_sum;
    result.num_targets = last_.num_targets;
    result.aux_loss = last_.aux_loss;
    COTERIE_CHECK(result.num_targets == input.num_targets, "the model saw ", result.num_targets,
                  " targets of ", input.num_targets);
    for (const models::LayerStatistics& layer : last_.layers) {
      LayerLoad load;
      load.layer = static_cast<std::int32_t>(layer.layer);
      load.picks = layer.routing.picks_per_expert;
      load.num_dropped = layer.routing.num_dropped_picks;
      load.num_tokens = layer.routing.num_tokens;
      load.num_rows = layer.rows_sent;
      result.layers.push_back(std::move(load));
    }
    return result;
  }

  void sum_gradients() override { decoder_.reduce_gradients(); }
  void zero_gradients() override { decoder_.zero_gradients(); }
  void after_step(const StepResult& /*result*/) override {
    decoder_.update_selection_biases(last_);
  }

  LossSum evaluate(std::span<const MicroBatch> micro_batches) override {
    const models::StepResult result = decoder_.evaluate(to_decoder(micro_batches));
    return {result.loss_sum, result.num_targets};
  }

  void write_description(const std::filesystem::path& folder) const override {
    write_json_file(folder / "config.json", config_json_);
  }
  [[nodiscard]] ModelSize size() const override { return size_; }

  [[nodiscard]] std::uint64_t bytes_sent() const override {
    const comm::Traffic traffic = groups_.traffic();
    return std::accumulate(traffic.bytes_sent.begin(), traffic.bytes_sent.end(), std::uint64_t{0});
  }

 private:
  parallel::Groups& groups_;
  Json config_json_;
  models::TrainableDecoder decoder_;
  ModelSize size_;
  std::vector<Parameter> parameters_;
  models::StepResult last_;
};

}  // namespace

parallel::Layout layout_of(const Recipe& recipe) {
  parallel::LayoutOptions options;
  options.data = static_cast<int>(recipe.layout.data);
  options.model = static_cast<int>(recipe.layout.model);
  options.expert = static_cast<int>(recipe.layout.expert);
  options.expert_shard = static_cast<int>(recipe.layout.expert_shard);
  options.pipeline = static_cast<int>(recipe.layout.pipeline);
  return parallel::Layout(options);
}

models::TrainableConfig config_of(const Recipe& recipe) {
  return models::trainable_config_from_json(recipe.model, "recipe " + recipe.name + ", model");
}

ModelSize size_of(const models::TrainableConfig& config, std::int64_t sequence_length) {
  const models::ModelConfig& m = config.model;
  const std::int64_t heads = m.num_heads * m.head_dim;
  const std::int64_t kv_heads = m.num_kv_heads * m.head_dim;
  const std::int64_t attention = m.hidden_size * (2 * heads + 2 * kv_heads);
  const std::int64_t matrices = config.is_gpt2() ? 2 : 3;
  const std::int64_t expert = matrices * m.hidden_size * m.expert_intermediate_size;
  const std::int64_t router = m.num_experts * m.hidden_size;
  const std::int64_t dense = matrices * m.hidden_size * config.dense_intermediate_size;
  const auto num_moe = std::ssize(m.moe_layers);
  const std::int64_t num_dense = m.num_layers - num_moe;
  const std::int64_t head = m.vocab_size * m.hidden_size;
  ModelSize size;
  size.num_parameters = (m.tied_head ? 1 : 2) * head + m.num_layers * attention +
                        num_dense * dense + num_moe * (router + m.num_experts * expert);
  size.num_active =
      head + m.num_layers * attention + num_dense * dense + num_moe * (router + m.top_k * expert);
  size.flops_per_token =
      2.0 * static_cast<double>(size.num_active) +
      2.0 * static_cast<double>(m.num_layers * heads) * static_cast<double>(sequence_length);
  return size;
}

std::unique_ptr<Model> make_decoder_model(const Recipe& recipe, parallel::Groups& groups,
                                          const kernels::Execution& execution,
                                          const std::filesystem::path& start_from) {
  auto model = std::make_unique<DecoderModel>(recipe, groups, execution);
  if (!start_from.empty()) {
    read_model(start_from, model->parameters(), groups.world());
  }
  if (recipe.tune.mode == TuneMode::kLora) {
    return make_lora_model(std::move(model), recipe.tune.lora, recipe.seed);
  }
  return model;
}

}  // namespace coterie::training
