// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coterie/models/models.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::models {

/// Tiny models whose sizes divide by 4 in every axis that is spread.
TrainableConfig tiny_config(const std::string& family);

/// fp64, balance losses on, deterministic.
TrainableOptions tiny_options();

/// The sequences of step `step`: ragged, some empty, the same for every layout.
std::vector<std::vector<std::int64_t>> step_sequences(std::int64_t vocab_size, std::uint64_t step,
                                                      std::size_t count = 7);

/// What data coordinate `data` of `num_data` gets of them, in `num_micro` micro-batches.
std::vector<MicroBatch> micro_batches(const std::vector<std::vector<std::int64_t>>& sequences,
                                      int data, int num_data, std::size_t num_micro);

struct TrainingRun {
  TrainableConfig config;
  TrainableOptions options;
  parallel::LayoutOptions layout;
  std::size_t num_steps = 10;
  std::size_t num_micro = 2;
};

/// Mean loss (balance losses included) of each step, by one rank of the world. A plain Adam.
std::vector<double> train(comm::Communicator& world, const TrainingRun& run);

/// As `train`, in threads of this process; all ranks must see the same losses.
std::vector<double> train_in_threads(const TrainingRun& run);

/// Tensors of the whole model by checkpoint name, gathered from ranks by their pieces.
using WholeTensors = std::map<std::string, at::Tensor>;
enum class Part : std::uint8_t { kValue, kGradient };
/// Adds this rank's pieces; where several ranks hold a piece they must be equal to the last bit
/// (returns false if not).
bool add_pieces(WholeTensors& whole, const TrainableDecoder& decoder, Part part);

struct Gradients {
  WholeTensors values;
  WholeTensors gradients;
  double loss = 0;  ///< balance losses included
  std::vector<LayerStatistics> layers;
};

/// Step 0 at a layout, ranks in threads; what several ranks hold must be equal to the last bit.
/// `num_sequences` of step_sequences: fewer than data ranks leaves ranks without tokens.
Gradients gradients_of(const TrainableConfig& config, const TrainableOptions& options,
                       const parallel::LayoutOptions& layout, std::size_t num_micro = 2,
                       std::size_t num_sequences = 7);

}  // namespace coterie::models
