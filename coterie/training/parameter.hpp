// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/models/models.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::training {

/// A rectangle of a checkpoint tensor and its place in a tensor of this rank: checkpoints are
/// written from pieces and read into pieces, and so fit every layout.
using Piece = models::ParameterPiece;
using models::view_of;

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
  bool is_frozen =
      false;  ///< no gradient, no optimizer state; written into checkpoints all the same

  [[nodiscard]] int num_replicas() const { return replicas == nullptr ? 1 : replicas->size(); }
  [[nodiscard]] int replica() const { return replicas == nullptr ? 0 : replicas->rank(); }
  /// `value`'s gradient; kInternal if there is none (an idle expert has zeros).
  [[nodiscard]] at::Tensor gradient() const;
};

}  // namespace coterie::training
