// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/models/checkpoint.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::models {

/// A rectangle of a checkpoint tensor and its place in a tensor of this rank. A rank's pieces say,
/// without a word about layouts, which part of the model it holds: experts by their global number,
/// shards by their indices.
struct ParameterPiece {
  std::string name;                 ///< of the tensor in a Hugging Face checkpoint
  std::vector<std::int64_t> shape;  ///< of that tensor, whole
  std::vector<std::int64_t> start;  ///< first index of the rectangle, a dimension
  std::vector<std::int64_t> size;   ///< of the rectangle, a dimension
  /// The local tensor's first index (stacked experts: [slots, rows, columns]); -1: the local tensor
  /// has the piece's dimensions.
  std::int64_t slot = -1;
  std::int64_t row = 0;  ///< the local row at which the rectangle begins

  bool operator==(const ParameterPiece&) const = default;
};

/// How a parameter begins; kGiven: as it is.
enum class Beginning : std::uint8_t { kNormal, kOnes, kZeros, kGiven };

/// A tensor that is trained, as one rank sees it.
struct TrainableParameter {
  std::string name;  ///< the same on every rank that holds a part: "model.layers.0.mlp.gate.weight"
  at::Tensor value;  ///< contiguous; its `grad()` is the gradient
  parallel::ParameterKind kind = parallel::ParameterKind::kReplicated;
  std::vector<ParameterPiece> pieces;  ///< cover `value` without overlap
  bool has_decay = true;               ///< weight decay applies (matrices, not norms and biases)
  bool is_router = false;              ///< belongs to a gate
  Beginning beginning = Beginning::kNormal;
  double deviation = 0.02;  ///< of kNormal

  [[nodiscard]] bool is_expert() const {
    return kind == parallel::ParameterKind::kExpert || kind == parallel::ParameterKind::kExpertBias;
  }
};

/// The elements of a piece in the tensor that holds it: a view of shape `piece.size`.
at::Tensor view_of(const ParameterPiece& piece, const at::Tensor& local);

/// The piece that is a whole tensor.
ParameterPiece whole_piece(const std::string& name, at::IntArrayRef shape);

/// Fills a parameter's pieces. Each element is a function of (seed, name of the checkpoint tensor,
/// its index there) alone, drawn in fp64 and rounded to the parameter's type: every layout begins
/// from the same numbers.
void begin_parameter(TrainableParameter& parameter, std::uint64_t seed);

/// Copies a parameter's pieces out of a checkpoint, converting types. kBadInput naming file, tensor
/// and shapes where one is missing or differs. Where a family has two spellings of a name (fused
/// experts, Mixtral's `mlp`), either is read.
void read_parameter(TrainableParameter& parameter, const Checkpoint& checkpoint);

}  // namespace coterie::models
