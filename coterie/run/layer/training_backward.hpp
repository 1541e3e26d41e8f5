// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/layer/training_layer.hpp"
#include "coterie/run/layer/training_part.hpp"

/// Private to the room: what the files of TrainingLayer share.
namespace coterie::layer {

/// One backward.
struct TrainingLayer::BackwardRun {
  TrainingState& state;
  kernels::ConstMatrixView x;
  kernels::ConstMatrixView grad_y;
  std::span<const DeviceExperts> experts;
  const Results& results;
  exchange::ArrivedRows& inputs;                 // as they were kept, or fetched again
  std::vector<exchange::Scalars>& grad_weights;  // [local devices] of entries
};

/// One local device in one chunk of a backward.
struct TrainingLayer::BackwardDevice {
  std::size_t i;
  TrainingState& state;
  kernels::ConstMatrixView inputs;         // where its rows stand
  std::span<const std::int32_t> input_at;  // [rows of the chunk]
  const DeviceExperts& experts;
  const DeviceGradients& gradients;
  const exchange::ChunkRows& chunk;  // the gradients' rows
  exchange::Scalars& grad_weights;   // [entries]
  std::int32_t chunk_number;
  bool puts_off;  // weight gradients are made later
};

}  // namespace coterie::layer
