// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/run/comm/comm.hpp"

namespace coterie::training {

/// A rectangle of a checkpoint tensor and its place in a tensor of this rank. With it a rank says,
/// without a word about layouts, which part of the model it holds: checkpoints are written from
/// pieces and read into pieces, and so fit every layout.
struct Piece {
  std::string name;                 ///< of the tensor in a Hugging Face checkpoint
  std::vector<std::int64_t> shape;  ///< of that tensor, one or more dimensions
  std::vector<std::int64_t> start;  ///< first index of the rectangle, a dimension
  std::vector<std::int64_t> size;   ///< of the rectangle, a dimension
  /// The local tensor's index of this piece (stacked experts: [slots, rows, columns]); -1: the
  /// local tensor has the piece's dimensions.
  std::int64_t slot = -1;
  std::int64_t row = 0;  ///< the local row at which the rectangle begins

  bool operator==(const Piece&) const = default;
};

/// The elements of `piece` in `local`, a view of shape `piece.size`. All columns of the local
/// tensor belong to the piece, so that the view is contiguous where `local` is.
at::Tensor view_of(const Piece& piece, const at::Tensor& local);

/// Throws kInternal, naming the parameter, unless the pieces cover `local` exactly.
void check_pieces(const std::string& name, const std::vector<Piece>& pieces,
                  const at::Tensor& local);

/// A tensor that is trained, as one rank sees it.
struct Parameter {
  std::string name;           ///< for messages; local
  at::Tensor value;           ///< contiguous; fp32, fp64 or bf16
  std::vector<Piece> pieces;  ///< cover `value` without overlap
  /// The ranks that hold the same values, which is the group that the gradient is summed over;
  /// null: this rank alone.
  comm::Communicator* replicas = nullptr;
  bool is_expert = false;
  bool has_decay = true;  ///< weight decay applies

  [[nodiscard]] int num_replicas() const { return replicas == nullptr ? 1 : replicas->size(); }
  [[nodiscard]] int replica() const { return replicas == nullptr ? 0 : replicas->rank(); }
  /// `value`'s gradient; kInternal if there is none (an idle expert has zeros).
  [[nodiscard]] at::Tensor gradient() const;
};

}  // namespace coterie::training
