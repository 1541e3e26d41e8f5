// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "coterie/models/models.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/training/parameter.hpp"

namespace coterie::training {

/// A piece that this rank contributes, and the local tensor that holds it.
struct HeldPiece {
  Piece piece;
  at::Tensor local;  ///< fp32, fp64 or bf16
};

/// Tensors whose pieces lie on several ranks, put together on rank 0 one at a time, so that no rank
/// ever holds more than one whole tensor of another. Making it is collective: every rank learns who
/// has what, and that the pieces of each tensor cover it without gap or overlap (kInternal, naming
/// the tensor, otherwise). Contribute each piece from one rank only.
class GatheredTensors {
 public:
  GatheredTensors(std::vector<HeldPiece> mine, comm::Communicator& world);

  /// On rank 0: all tensors, ascending by name. Calling `produce` fetches the pieces, while the
  /// other ranks are in serve().
  [[nodiscard]] std::vector<models::OutgoingTensor> outgoing();
  /// On other ranks: hands over pieces until rank 0 calls finish(), or fails, which ends the group.
  void serve();
  /// On rank 0: the others may go.
  void finish();

 private:
  struct Part {
    int rank = 0;
    std::vector<std::int64_t> start;
    std::vector<std::int64_t> size;
    std::size_t index = 0;  ///< among the pieces of its rank
  };
  struct Whole {
    std::string name;
    models::ElementType type = models::ElementType::kF32;
    std::vector<std::int64_t> shape;
    std::vector<Part> parts;  ///< in order of rank, then of index
  };
  void exchange_descriptions();
  void check_cover() const;
  at::Tensor fetch(std::size_t index);
  at::Tensor transfer(std::size_t index);

  std::vector<HeldPiece> mine_;
  comm::Communicator& world_;
  std::vector<Whole> wholes_;
};

/// Every rank's text, in rank order. Collective.
std::vector<std::string> gather_texts(const std::string& mine, comm::Communicator& world);

models::ElementType element_type_of(at::ScalarType type);

}  // namespace coterie::training
