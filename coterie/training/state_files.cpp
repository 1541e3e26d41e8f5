// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/state_files.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/models/models.hpp"
#include "coterie/training/gathered_tensors.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAverage = "exp_avg.";
constexpr const char* kSquare = "exp_avg_sq.";
constexpr const char* kMaster = "master.";

/// The part of a piece that a state with rows [first, first + count) of the parameter has; false if
/// none. Rows of a stacked tensor are its slots.
bool clip_to_rows(Piece& piece, const AdamWState& state) {
  if (piece.slot >= 0) {
    piece.slot -= state.first_row;
    return piece.slot >= 0 && piece.slot < state.num_rows;
  }
  const std::int64_t begin = std::max(piece.row, state.first_row);
  const std::int64_t end = std::min(piece.row + piece.size[0], state.first_row + state.num_rows);
  if (begin >= end) {
    return false;
  }
  piece.start[0] += begin - piece.row;
  piece.size[0] = end - begin;
  piece.row = begin - state.first_row;
  return true;
}

/// Calls `visit(piece, local tensor)` for every piece of the optimizer's state on this rank.
template <typename Visit>
void for_each_state_piece(AdamW& optimizer, const Visit& visit) {
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const Parameter& parameter = optimizer.parameters()[i];
    const AdamWState& state = optimizer.states()[i];
    for (const Piece& whole : parameter.pieces) {
      Piece piece = whole;
      if (!clip_to_rows(piece, state)) {
        continue;
      }
      const std::pair<const char*, at::Tensor> kinds[] = {
          {kAverage, state.average}, {kSquare, state.square}, {kMaster, state.master}};
      for (const auto& [prefix, tensor] : kinds) {
        if (tensor.defined()) {
          piece.name = prefix + whole.name;
          visit(parameter, state, piece, tensor);
        }
      }
    }
  }
}

std::vector<HeldPiece> model_pieces(std::span<const Parameter> parameters) {
  std::vector<HeldPiece> held;
  for (const Parameter& parameter : parameters) {
    if (parameter.replica() == 0) {
      for (const Piece& piece : parameter.pieces) {
        held.push_back({piece, parameter.value});
      }
    }
  }
  return held;
}

std::vector<HeldPiece> optimizer_pieces(AdamW& optimizer) {
  std::vector<HeldPiece> held;
  for_each_state_piece(optimizer, [&](const Parameter& parameter, const AdamWState& state,
                                      const Piece& piece, const at::Tensor& tensor) {
    if (parameter.replica() == 0 || state.is_sharded) {
      held.push_back({piece, tensor});
    }
  });
  return held;
}

/// Rank 0 writes with `write`, the others serve.
template <typename Write>
void write_together(GatheredTensors& tensors, comm::Communicator& world, const Write& write) {
  if (world.rank() == 0) {
    write(tensors.outgoing());
    tensors.finish();
  } else {
    tensors.serve();
  }
}

at::Tensor as_tensor(const models::Tensor& tensor) {
  const auto type = tensor.type();
  const auto scalar = type == models::ElementType::kF64    ? at::kDouble
                      : type == models::ElementType::kF32  ? at::kFloat
                      : type == models::ElementType::kBF16 ? at::kBFloat16
                                                           : at::kHalf;
  if (scalar == at::kHalf && type != models::ElementType::kF16) {
    fail(ErrorCode::kUnsupported, tensor.place(), ": type ", models::name_of(type),
         " cannot be trained");
  }
  auto* data = const_cast<std::byte*>(tensor.bytes().data());  // only read
  return at::from_blob(data, tensor.shape(), at::TensorOptions().dtype(scalar));
}

void read_piece(const models::Checkpoint& checkpoint, const Piece& piece, const at::Tensor& local) {
  const models::Tensor* tensor = checkpoint.find(piece.name);
  COTERIE_REQUIRE(tensor != nullptr, checkpoint.path().string(), ": tensor \"", piece.name,
                  "\" is missing");
  COTERIE_REQUIRE(tensor->shape() == piece.shape, tensor->place(), ": shape ",
                  models::format_shape(tensor->shape()), ", the model needs ",
                  models::format_shape(piece.shape));
  at::Tensor part = as_tensor(*tensor);
  for (std::size_t d = 0; d < piece.start.size(); ++d) {
    part = part.narrow(static_cast<std::int64_t>(d), piece.start[d], piece.size[d]);
  }
  view_of(piece, local.detach()).copy_(part);
}

/// kBadInput if the file has a tensor that no rank knows.
void check_all_known(const models::Checkpoint& checkpoint, const std::set<std::string>& mine,
                     comm::Communicator& world) {
  std::string text;
  for (const std::string& name : mine) {
    text += name + '\n';
  }
  std::set<std::string> known;
  for (const std::string& names : gather_texts(text, world)) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) {
      known.insert(name);
    }
  }
  for (const models::Tensor& tensor : checkpoint.tensors()) {
    COTERIE_REQUIRE(known.contains(tensor.name()), tensor.place(),
                    ": the model has no tensor of that name");
  }
}

}  // namespace

void write_state(const StateToWrite& state, comm::Communicator& world, Progress& progress) {
  AdamW& optimizer = *state.optimizer;
  GatheredTensors weights(model_pieces(optimizer.parameters()), world);
  GatheredTensors moments(optimizer_pieces(optimizer), world);
  std::optional<models::NewFolder> folder;
  if (world.rank() == 0) {
    folder.emplace(state.folder);
    state.write_description(folder->path());
    Json trainer = state.trainer;
    trainer["optimizer_steps"] = optimizer.num_steps();
    fs::create_directory((folder->path() / kTrainerFile).parent_path());
    write_json_file(folder->path() / kTrainerFile, trainer);
  }
  write_together(weights, world, [&](const auto& outgoing) {
    models::write_checkpoint(folder->path(), outgoing, models::kMaxShardBytes, progress);
  });
  write_together(moments, world, [&](const auto& outgoing) {
    models::write_safetensors(folder->path() / kOptimizerFile, outgoing, {}, progress);
  });
  if (folder) {
    folder->commit();
  }
  world.barrier();
}

void write_model(const fs::path& folder, std::span<const Parameter> parameters,
                 const std::function<void(const fs::path&)>& write_description,
                 comm::Communicator& world, Progress& progress) {
  GatheredTensors weights(model_pieces(parameters), world);
  std::optional<models::NewFolder> place;
  if (world.rank() == 0) {
    std::error_code ignored;
    if (fs::exists(folder / "config.json")) {
      fs::remove_all(folder, ignored);
    }
    place.emplace(folder);
    write_description(place->path());
  }
  write_together(weights, world, [&](const auto& outgoing) {
    models::write_checkpoint(place->path(), outgoing, models::kMaxShardBytes, progress);
  });
  if (place) {
    place->commit();
  }
  world.barrier();
}

void write_tensors(const fs::path& file, std::span<const Parameter> parameters,
                   comm::Communicator& world, Progress& progress) {
  GatheredTensors weights(model_pieces(parameters), world);
  write_together(weights, world, [&](const auto& outgoing) {
    models::write_safetensors(file, outgoing, models::kPytorchMetadata, progress);
  });
  world.barrier();
}

void read_model(const fs::path& folder, std::span<Parameter> parameters,
                comm::Communicator& world) {
  const at::NoGradGuard no_grad;
  const models::Checkpoint checkpoint(folder);
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    for (const Piece& piece : parameter.pieces) {
      names.insert(piece.name);
      read_piece(checkpoint, piece, parameter.value);
    }
  }
  check_all_known(checkpoint, names, world);
}

Json read_state(const fs::path& folder, AdamW& optimizer, comm::Communicator& world) {
  const fs::path trainer_file = folder / kTrainerFile;
  COTERIE_REQUIRE(fs::exists(trainer_file), folder.string(), ": no training checkpoint (it has no ",
                  kTrainerFile, ")");
  Json trainer = read_json_file(trainer_file);
  read_model(folder, optimizer.parameters(), world);
  const at::NoGradGuard no_grad;
  const models::Checkpoint moments(folder / kOptimizerFile);
  std::set<std::string> names;
  for_each_state_piece(optimizer, [&](const Parameter&, const AdamWState&, const Piece& piece,
                                      const at::Tensor& tensor) {
    names.insert(piece.name);
    read_piece(moments, piece, tensor);
  });
  check_all_known(moments, names, world);
  optimizer.set_num_steps(
      JsonReader(trainer, trainer_file.string()).at("optimizer_steps").as_int(0));
  return trainer;
}

}  // namespace coterie::training
