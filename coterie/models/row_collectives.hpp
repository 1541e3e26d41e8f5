// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/parallel/parallel.hpp"

namespace coterie::models {

// Collectives over rows with gradients. Rows are in CPU memory or are copied there and back. In a
// group of one they return what they get. All ranks call them in the same order, forward and
// backward; a block of rows may be empty.

/// Rows of a data coordinate that lie one after another on the ranks of its model group.
struct RowBlocks {
  std::vector<std::int64_t> num_rows;  ///< [ranks]
  [[nodiscard]] std::int64_t total() const;
  [[nodiscard]] std::int64_t first(int rank) const;
};

/// `count` rows over the ranks of `group` as evenly as can be (parallel::share_of).
RowBlocks row_blocks(std::int64_t count, int num_ranks);

/// x [rows here, ...] -> [all rows, ...]. Backward: the sum of all ranks' gradients, this rank's
/// rows (reduce-scatter).
at::Tensor gather_rows(const at::Tensor& x, const RowBlocks& blocks, comm::Communicator& group);

/// Partial sums x [all rows, ...] -> the sum over all ranks, this rank's rows. Backward: gather.
at::Tensor sum_scatter_rows(const at::Tensor& x, const RowBlocks& blocks,
                            comm::Communicator& group);

/// Partial sums x, the same shape on every rank -> their sum, on every rank; so is the gradient's.
at::Tensor sum_everywhere(const at::Tensor& x, comm::Communicator& group);

/// In place, without gradient.
void sum_in_place(at::Tensor& x, comm::Communicator& group, comm::Purpose purpose);

/// The numbers of a contiguous CPU tensor (fp32, fp64, bf16, int64).
parallel::Numbers numbers_of(const at::Tensor& tensor);

/// A block of rows goes to the other rank of a pair, or comes from it: x [rows, columns].
void send_rows(const at::Tensor& x, comm::Communicator& pair);
at::Tensor receive_rows(at::IntArrayRef shape, const at::TensorOptions& options,
                        comm::Communicator& pair);

}  // namespace coterie::models
