// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/layer/training_layer.hpp"

namespace coterie::layer {

/// The (token, expert) rows of one device that are computed in one go, sorted by expert.
struct TrainingPart {
  const exchange::ReceiveLists& lists;
  std::int64_t first_entry = 0;            ///< of the device's entries
  std::int64_t first_row_of_chunk = 0;     ///< its first row, counted from the chunk's
  std::span<const std::int32_t> input_of;  ///< [expanded] row of the chunk's inputs
  std::span<const std::int32_t> entry_of;  ///< [expanded] entry of the device

  [[nodiscard]] std::int64_t num_expanded() const { return std::ssize(lists.row_of_expanded); }
  [[nodiscard]] std::span<const std::int32_t> sum_at(const exchange::ChunkRows& chunk) const {
    return chunk.sum_at.subspan(static_cast<std::size_t>(first_row_of_chunk),
                                static_cast<std::size_t>(lists.num_rows));
  }
};

/// The memory of a part. A part whose weight gradients are put off keeps its own until then.
struct PartMemory {
  exchange::ReceiveLists lists;
  std::vector<std::int32_t> input_of;
  std::vector<std::int32_t> entry_of;
  std::vector<std::int32_t> input_at;
  exchange::ByteBuffer grad_pre;
  exchange::ByteBuffer hidden;
  exchange::Scalars weights;
};

/// A part whose weight gradients are still to be made.
struct KeptPart {
  PartMemory memory;
  std::size_t device = 0;  ///< number of the local device
  std::int32_t chunk = 0;
  std::int64_t first_entry = 0;
  std::int64_t first_row_of_chunk = 0;
  kernels::MatrixView grad_pre;
  kernels::MatrixView hidden;
};

/// What the weight gradients of a part are made of.
struct WeightGradientRows {
  const TrainingPart& part;
  kernels::ConstMatrixView grad_outputs;   ///< [any, H], at part.input_of
  kernels::ConstMatrixView inputs;         ///< [any, H]
  std::span<const std::int32_t> input_at;  ///< [expanded] row of inputs
  kernels::ConstMatrixView grad_pre;       ///< [expanded, P]
  kernels::ConstMatrixView hidden;         ///< [expanded, I], times the routing weights
  const exchange::Scalars& weights;        ///< [expanded] routing weights
};

/// Adds the part's rows to the gradients, row after row: parts in order give the bits of one part.
void add_weight_gradients(const WeightGradientRows& rows, const DeviceGradients& gradients,
                          const kernels::Execution& execution);

/// Exact zeros, where the gradients have memory.
void set_zero(const DeviceGradients& gradients);

/// to[at[i]] = from[i], of one type.
void scatter(const exchange::Scalars& from, std::span<const std::int32_t> at,
             exchange::Scalars& to);

}  // namespace coterie::layer
