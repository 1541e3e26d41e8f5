// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/training/adamw.hpp"
#include "coterie/training/parameter.hpp"

namespace coterie::training {

inline constexpr const char* kOptimizerFile = "trainer/optimizer.safetensors";
inline constexpr const char* kTrainerFile = "trainer/state.json";

/// A checkpoint to be written.
struct StateToWrite {
  std::filesystem::path folder;  ///< appears whole or not at all
  AdamW* optimizer = nullptr;
  Json trainer;  ///< goes to trainer/state.json; the optimizer's step count is added
  /// Writes what belongs beside the weights (config.json, tokenizer files) into the folder.
  std::function<void(const std::filesystem::path& folder)> write_description;
};

/// Writes a folder that transformers loads (config.json, model.safetensors or shards with an index)
/// and from which training goes on at any layout: trainer/optimizer.safetensors holds
/// `exp_avg.NAME`, `exp_avg_sq.NAME` and, for bf16 weights, `master.NAME` of every tensor NAME of
/// the model, and trainer/state.json the rest (in a folder of their own: engines load every
/// safetensors file beside the weights). Rank 0 writes, fetching one tensor at a time from whoever
/// has it. Collective over `world`. Errors name the file: kIo.
void write_state(const StateToWrite& state, comm::Communicator& world, Progress& progress);

/// Writes the model alone: config.json and safetensors, as transformers loads it. An older folder
/// at that place is replaced. Collective over `world`.
void write_model(const std::filesystem::path& folder, std::span<const Parameter> parameters,
                 const std::function<void(const std::filesystem::path&)>& write_description,
                 comm::Communicator& world, Progress& progress);

/// Writes parameters into one safetensors file. Collective over `world`.
void write_tensors(const std::filesystem::path& file, std::span<const Parameter> parameters,
                   comm::Communicator& world, Progress& progress);

/// Reads a model's tensors into the parameters, each rank its own pieces. F32, F64, BF16 and F16
/// are converted. kBadInput, naming the tensor, if one is missing, left over or of another shape.
/// Collective over `world`.
void read_model(const std::filesystem::path& folder, std::span<Parameter> parameters,
                comm::Communicator& world);

/// Reads a checkpoint of write_state: weights, then the optimizer's state; returns
/// trainer/state.json.
Json read_state(const std::filesystem::path& folder, AdamW& optimizer, comm::Communicator& world);

}  // namespace coterie::training
