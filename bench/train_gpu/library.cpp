// SPDX-License-Identifier: Apache-2.0
// The trainer behind plain C functions, so that a Python process that runs transformers can run it
// on the same GPU. Every function returns 0, or 1 with the message in tg_error().
#include <ATen/ATen.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/models.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/training/training.hpp"

namespace {

using namespace coterie;

std::string message;

struct Trained {
  Trained(const Json& config, const models::TrainableOptions& options)
      : groups(world.communicator(0), parallel::Layout(parallel::LayoutOptions{})),
        decoder(models::trainable_config_from_json(config, "config"), groups, options) {}

  comm::FakeGroup world{1};
  parallel::Groups groups;
  models::TrainableDecoder decoder;
  std::vector<training::Parameter> parameters;
  std::unique_ptr<training::AdamW> optimizer;
};

std::vector<std::unique_ptr<Trained>> all;

template <typename Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}

/// The piece of a checkpoint tensor and the parameter that holds it.
at::Tensor piece_of(Trained& trained, const std::string& name, bool gradient) {
  for (const models::TrainableParameter& parameter : trained.decoder.parameters()) {
    for (const models::ParameterPiece& piece : parameter.pieces) {
      if (piece.name == name) {
        return models::view_of(piece, gradient ? parameter.value.grad() : parameter.value.detach());
      }
    }
  }
  fail(ErrorCode::kBadInput, "no tensor ", name);
}

}  // namespace

extern "C" {

const char* tg_error() {
  return message.c_str();
}

/// Options: {"dtype", "device", "grouped_mm", "loss_chunk", "load_balance", "seed"}.
int tg_make(const char* config, const char* options_text, int* handle) {
  return guarded([&] {
    const Json wish = parse_json(options_text, "options");
    models::TrainableOptions options;
    const auto dtype = wish.at("dtype").get<std::string>();
    options.type = dtype == "bf16" ? at::kBFloat16 : dtype == "fp64" ? at::kDouble : at::kFloat;
    options.device = device::parse_device(wish.at("device").get<std::string>(), "device");
    options.grouped_mm = wish.value("grouped_mm", false);
    options.reference = wish.value("reference", false);
    options.loss_chunk = wish.value("loss_chunk", 16384);
    options.seed = wish.value("seed", 1);
    options.gate.balance.load_balance = wish.value("load_balance", 0.0);
    all.push_back(std::make_unique<Trained>(parse_json(config, "config"), options));
    for (const models::TrainableParameter& theirs : all.back()->decoder.parameters()) {
      training::Parameter parameter;
      parameter.name = theirs.name;
      parameter.value = theirs.value;
      parameter.pieces = theirs.pieces;
      parameter.is_expert = theirs.is_expert();
      parameter.has_decay = theirs.has_decay;
      all.back()->parameters.push_back(std::move(parameter));
    }
    *handle = static_cast<int>(all.size()) - 1;
  });
}

int tg_drop(int handle) {
  return guarded([&] { all.at(static_cast<std::size_t>(handle)).reset(); });
}

/// `data` [numel] on `device_index` (-1: CPU) of the parameter's type; direction 0: into the value,
/// 1: the value out, 2: the gradient out.
int tg_piece(int handle, const char* name, void* data, int device_index, int direction) {
  return guarded([&] {
    const at::NoGradGuard no_grad;
    at::Tensor piece = piece_of(*all.at(static_cast<std::size_t>(handle)), name, direction == 2);
    const at::Device where =
        device_index < 0 ? at::Device(at::kCPU)
                         : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_index));
    at::Tensor other = at::from_blob(data, piece.sizes(),
                                     at::TensorOptions().dtype(piece.scalar_type()).device(where));
    if (direction == 0) {
      piece.copy_(other);
    } else {
      other.copy_(piece);
    }
  });
}

/// Forward and backward of token ids [num_sequences, length + 1] (CPU); gradients are new. Loss and
/// auxiliary loss are read (waits for the GPU).
int tg_forward_backward(int handle, const std::int64_t* ids, std::int64_t num_sequences,
                        std::int64_t length, double* losses) {
  return guarded([&] {
    Trained& trained = *all.at(static_cast<std::size_t>(handle));
    const at::Tensor tokens =
        at::from_blob(const_cast<std::int64_t*>(ids), {num_sequences, length + 1}, at::kLong);
    models::MicroBatch batch;
    batch.token_ids = tokens.narrow(1, 0, length).reshape({-1});
    batch.targets = tokens.narrow(1, 1, length).reshape({-1});
    for (std::int64_t s = 0; s <= num_sequences; ++s) {
      batch.sequence_offsets.push_back(s * length);
    }
    trained.decoder.zero_gradients();
    const models::StepResult result = trained.decoder.forward_backward({&batch, 1}, 0);
    losses[0] = result.mean_loss();
    losses[1] = result.aux_loss;
  });
}

int tg_make_optimizer(int handle, int master_weights, double weight_decay) {
  return guarded([&] {
    Trained& trained = *all.at(static_cast<std::size_t>(handle));
    training::AdamWOptions options;
    options.master_weights = master_weights != 0;
    options.weight_decay = weight_decay;
    options.beta2 = 0.95;
    trained.optimizer = std::make_unique<training::AdamW>(trained.parameters, options);
  });
}

/// One optimizer step, clipped to `limit` (0: not). Queued, not waited for.
int tg_optimizer_step(int handle, double rate, double limit) {
  return guarded([&] {
    Trained& trained = *all.at(static_cast<std::size_t>(handle));
    trained.decoder.reduce_gradients();
    if (limit > 0) {
      trained.optimizer->step(rate, training::gpu_gradient_norm(trained.parameters, limit).factor);
    } else {
      trained.optimizer->step(rate, 1.0);
    }
  });
}

/// Bytes of parameters, optimizer states.
int tg_bytes(int handle, std::int64_t* bytes) {
  return guarded([&] {
    Trained& trained = *all.at(static_cast<std::size_t>(handle));
    bytes[0] = 0;
    for (const training::Parameter& parameter : trained.parameters) {
      bytes[0] += static_cast<std::int64_t>(parameter.value.nbytes());
    }
    bytes[1] = trained.optimizer ? trained.optimizer->num_bytes() : 0;
  });
}

/// A training run by a recipe (a JSON document), reports to `out`/metrics.jsonl.
int tg_train(const char* recipe_text, const char* folder, const char* demo, const char* out,
             const char* resume, std::int64_t stop_after) {
  return guarded([&] {
    training::Recipe recipe = training::read_recipe(parse_json(recipe_text, "recipe"), "recipe");
    training::RecipePaths paths{folder, demo};
    training::make_absolute(recipe, paths);
    NoProgress silent;
    training::TrainingData data(recipe, paths, silent);
    comm::FakeGroup world(1);
    parallel::Groups groups(world.communicator(0), training::layout_of(recipe));
    const auto model = training::make_decoder_model(
        recipe, groups, {},
        recipe.start_from.empty() ? std::filesystem::path() : paths.resolve(recipe.start_from));
    training::RunOptions options;
    options.out = out;
    options.resume = resume;
    options.stop_after = stop_after;
    const training::Workplace place{recipe, *model, data, world.communicator(0), {0, 1}, silent};
    training::run_training(place, options);
  });
}

}  // extern "C"
