// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/exchange/receive_lists.hpp"
#include "coterie/run/exchange/scalars.hpp"
#include "coterie/run/exchange/send_lists.hpp"
#include "coterie/run/exchange/token_blocks.hpp"

namespace coterie::exchange {

// Training needs one order of rows that depends on nothing but who owns which token: weight
// gradients are sums over rows. Received rows are numbered
//
//   block by block of position, in a block source by source, in a source token by token
//   (in the classical form then expert by expert)
//
// whatever chunk brings them. They arrive source by source. Two sources, blocks of 2 tokens for the
// drawing, all tokens wanted here:
//
//     source 0 has tokens a b c d, source 1 has p q r
//     numbering            a b p q | c d r          block 0 | block 1
//     one chunk arrives    a b c d p q r
//     two chunks arrive    a b p q, then c d r

/// Rows that arrive one behind the other and are numbered one behind the other.
struct Segment {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
};

/// What one device gets of a batch: rows by the numbering above, and how they arrive.
struct DeviceLists {
  std::int32_t device = 0;
  RowEntries entries;                 ///< of the rows; its weights are empty
  Scalars weights;                    ///< [entries] routing weights
  std::vector<std::int64_t> starts;   ///< [blocks * sources + 1] first row of each, block-major
  std::vector<std::int32_t> arrival;  ///< [sources] sources in the order in which they arrive

  [[nodiscard]] std::int64_t num_rows() const { return entries.num_rows(); }
  [[nodiscard]] std::size_t num_sources() const { return arrival.size(); }
  /// First row of a block; num_rows() behind the last.
  [[nodiscard]] std::int64_t first_row(std::int64_t block) const {
    return starts[static_cast<std::size_t>(block) * num_sources()];
  }
  /// Rows [first, end) of the blocks.
  [[nodiscard]] BlockRange rows_of(const BlockRange& blocks) const {
    return {first_row(blocks.first), first_row(blocks.end)};
  }
  /// The rows of a source in one block.
  [[nodiscard]] Segment segment(std::int64_t block, std::int32_t source) const {
    const std::size_t at =
        static_cast<std::size_t>(block) * num_sources() + static_cast<std::size_t>(source);
    return {starts[at], starts[at + 1] - starts[at]};
  }
  /// Rows that a source has in the blocks.
  [[nodiscard]] std::int64_t num_rows_from(std::int32_t source, const BlockRange& blocks) const;
  /// The rows of the blocks as they arrive.
  [[nodiscard]] std::vector<Segment> segments(const BlockRange& blocks) const;
  /// [rows of the blocks] where each row stands among those of these blocks as they arrive.
  void places(const BlockRange& blocks, std::vector<std::int32_t>& place_of_row) const;
};

/// The lists of one batch, made once and used by its forward and its backward.
struct TrainingLists {
  std::int64_t num_tokens = 0;  ///< of this process
  std::int32_t top_k = 0;
  std::int64_t num_blocks = 0;               ///< of the source with the most tokens of all ranks
  SendLists sent;                            ///< rows of this process's tokens
  Scalars weights_sent;                      ///< [entries sent] routing weights
  std::vector<std::int64_t> source_offsets;  ///< [sources here + 1] tokens of each
  std::vector<DeviceLists> devices;          ///< [local devices]

  /// Tokens [first, end) of a source here that lie in the blocks.
  [[nodiscard]] BlockRange tokens_of(std::size_t source, const BlockRange& blocks) const;
  /// Rows sent [first, end) to a device for tokens [first, end).
  [[nodiscard]] BlockRange rows_sent(std::int32_t device, const BlockRange& tokens) const;
};

/// The lists of a device out of what arrived: `arrived` holds the entries source by source in the
/// order `arrival`, `weights` theirs, and `rows` [sources * blocks] the number of rows of source s
/// in block b at s * blocks + b.
DeviceLists order_by_blocks(std::int32_t device, RowEntries arrived, Scalars weights,
                            std::span<const std::int64_t> rows, std::vector<std::int32_t> arrival);

/// Rows [sources * blocks] that this process sends to a device, source by source: the announcement.
std::vector<std::int64_t> rows_by_block(const TrainingLists& lists, std::int32_t device,
                                        std::int64_t num_blocks);

}  // namespace coterie::exchange
