// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/models/row_collectives.hpp"
#include "coterie/run/gates/gates.hpp"

namespace coterie::models {

// Where rows are cut up over a model group, a gate that selects within a sequence, or a capacity of
// a sequence, meets parts of sequences. These layers get each sequence whole, on the rank that owns
// its first token:
//
//     rows of rank 0 | rank 1       a a a b | b c c c      three sequences
//     whole sequences               a a a b b | c c c

/// Whether a layer with this gate and order needs whole sequences.
bool needs_whole_sequences(const gates::Gate& gate, const gates::OrderOptions& order);

/// Rows of each rank if every sequence is where its first row is. `offsets` [S + 1] of all rows, 0
/// to blocks.total(). Rows stay in order.
RowBlocks whole_sequence_blocks(const std::vector<std::int64_t>& offsets, const RowBlocks& blocks);

/// x [rows by `from`, ...] -> [rows by `to`, ...]; the rows' gradients go back. A collective.
at::Tensor move_rows(const at::Tensor& x, const RowBlocks& from, const RowBlocks& to,
                     comm::Communicator& group);

}  // namespace coterie::models
