// SPDX-License-Identifier: Apache-2.0
#include "tests/models/training_case.hpp"

#include <ATen/Parallel.h>

#include <mutex>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::models {

TrainableConfig tiny_config(const std::string& family) {
  TrainableConfig config;
  ModelConfig& model = config.model;
  model.family = family;
  model.vocab_size = 37;
  model.hidden_size = 16;
  model.expert_intermediate_size = 12;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 4;
  model.head_dim = 4;
  model.max_positions = 32;
  model.num_experts = 8;
  model.top_k = 2;
  model.rms_norm_eps = 1e-5;
  model.rope_theta = 10000;
  model.moe_layers = {0, 1};
  config.initializer_range = 0.25;
  if (family == "mixtral") {
    model.renormalise = true;
    model.sliding_window = 9;
  } else if (family == "olmoe") {
    model.qk_norm = QkNorm::kWholeProjection;
    model.clip_qkv = 2.0;
  } else if (family == "qwen3_moe") {
    model.qk_norm = QkNorm::kEachHead;
    model.num_heads = 8;  // grouped, wider than hidden
    model.renormalise = true;
    model.tied_head = true;
  } else {
    model.rope_theta = 0;
    model.tied_head = true;
    model.attention_bias = true;
    model.moe_layers = {1};
    config.dense_intermediate_size = 20;
  }
  return config;
}

TrainableOptions tiny_options() {
  TrainableOptions options;
  options.type = at::kDouble;
  options.seed = 5;
  options.gate.balance.load_balance = 0.02;
  options.gate.balance.z_loss = 0.001;
  options.loss_chunk = 7;
  return options;
}

std::vector<std::vector<std::int64_t>> step_sequences(std::int64_t vocab_size, std::uint64_t step,
                                                      std::size_t count) {
  constexpr std::array<std::size_t, 7> kLengths = {11, 3, 0, 17, 1, 8, 8};
  Random random(99, step);
  std::vector<std::vector<std::int64_t>> sequences;
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<std::int64_t> tokens(kLengths[s % kLengths.size()]);
    for (std::int64_t& token : tokens) {
      token = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(vocab_size)));
    }
    sequences.push_back(std::move(tokens));
  }
  return sequences;
}

std::vector<MicroBatch> micro_batches(const std::vector<std::vector<std::int64_t>>& sequences,
                                      int data, int num_data, std::size_t num_micro) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  const parallel::Share own = parallel::share_of(count, num_data, data);
  std::vector<MicroBatch> batches;
  for (std::size_t m = 0; m < num_micro; ++m) {
    const parallel::Share part =
        parallel::share_of(own.size(), static_cast<int>(num_micro), static_cast<int>(m));
    MicroBatch batch;
    std::vector<std::int64_t> ids;
    batch.sequence_offsets = {0};
    for (std::int64_t s = own.begin + part.begin; s < own.begin + part.end; ++s) {
      const auto& sequence = sequences[static_cast<std::size_t>(s)];
      ids.insert(ids.end(), sequence.begin(), sequence.end());
      batch.sequence_offsets.push_back(std::ssize(ids));
      batch.sequence_numbers.push_back(s);
    }
    batch.token_ids = at::tensor(ids, at::kLong);
    batches.push_back(std::move(batch));
  }
  return batches;
}

std::vector<double> train(comm::Communicator& world, const TrainingRun& run) {
  at::set_num_threads(1);
  const parallel::Layout layout(run.layout);
  parallel::Groups groups(world, layout);
  TrainableDecoder decoder(run.config, groups, run.options);
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> squares;
  for (const TrainableParameter& parameter : decoder.parameters()) {
    averages.push_back(at::zeros_like(parameter.value));
    squares.push_back(at::zeros_like(parameter.value));
  }
  std::vector<double> losses;
  for (std::size_t step = 0; step < run.num_steps; ++step) {
    const auto sequences = step_sequences(run.config.model.vocab_size, step);
    const auto batches =
        micro_batches(sequences, groups.coordinates().data, run.layout.data, run.num_micro);
    decoder.zero_gradients();
    const StepResult result = decoder.forward_backward(batches, step);
    decoder.reduce_gradients();
    losses.push_back(result.mean_loss() + result.aux_loss);
    const at::NoGradGuard no_gradients;
    for (std::size_t p = 0; p < averages.size(); ++p) {
      at::Tensor value = decoder.parameters()[p].value;
      const at::Tensor& gradient = value.grad();
      averages[p].mul_(0.9).add_(gradient, 0.1);
      squares[p].mul_(0.99).addcmul_(gradient, gradient, 0.01);
      // 1e-3: gradients that are zero but for rounding must not decide the direction.
      value.sub_(0.02 * averages[p] / (squares[p].sqrt() + 1e-3));
    }
  }
  return losses;
}

std::vector<double> train_in_threads(const TrainingRun& run) {
  std::mutex mutex;
  std::vector<std::vector<double>> seen;
  comm::run_ranks(run.layout.world_size(), [&](comm::Communicator& world) {
    std::vector<double> losses = train(world, run);
    const std::scoped_lock lock(mutex);
    seen.push_back(std::move(losses));
  });
  for (const auto& losses : seen) {
    COTERIE_CHECK(losses == seen[0], "ranks see different losses");
  }
  return seen[0];
}

bool add_pieces(WholeTensors& whole, const TrainableDecoder& decoder, Part part) {
  bool agree = true;
  for (const TrainableParameter& parameter : decoder.parameters()) {
    const at::Tensor local =
        part == Part::kValue ? parameter.value.detach() : parameter.value.grad();
    for (const ParameterPiece& piece : parameter.pieces) {
      at::Tensor& all =
          whole.try_emplace(piece.name, at::full(piece.shape, std::nan(""), local.options()))
              .first->second;
      at::Tensor place = all;
      for (std::size_t d = 0; d < piece.start.size(); ++d) {
        place = place.narrow(static_cast<std::int64_t>(d), piece.start[d], piece.size[d]);
      }
      const at::Tensor mine = view_of(piece, local);
      agree = agree && (place.isnan().all().item<bool>() || at::equal(place, mine));
      place.copy_(mine);
    }
  }
  return agree;
}

Gradients gradients_of(const TrainableConfig& config, const TrainableOptions& options,
                       const parallel::LayoutOptions& layout, std::size_t num_micro,
                       std::size_t num_sequences) {
  Gradients result;
  std::mutex mutex;
  const auto sequences = step_sequences(config.model.vocab_size, 0, num_sequences);
  comm::run_ranks(layout.world_size(), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    parallel::Groups groups(world, parallel::Layout(layout));
    TrainableDecoder decoder(config, groups, options);
    const StepResult step = decoder.forward_backward(
        micro_batches(sequences, groups.coordinates().data, layout.data, num_micro), 0);
    decoder.reduce_gradients();
    const std::scoped_lock lock(mutex);
    result.loss = step.mean_loss() + step.aux_loss;
    result.layers = step.layers;
    COTERIE_CHECK(add_pieces(result.values, decoder, Part::kValue), "values differ by rank");
    COTERIE_CHECK(add_pieces(result.gradients, decoder, Part::kGradient), "gradients differ");
  });
  return result;
}

}  // namespace coterie::models
