// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/send_lists.hpp"

namespace coterie::exchange {

// What travels beside the rows: only what the receiving device needs, its own slots and, where it
// forms partial sums, their weights.
//
//   kPerDevice  weights f32 [entries] | slots u16 [entries] | entries of each row u8 [rows]
//   kPerExpert  slots u16 [rows]
//
// The blocks have no padding. Before them the ranks exchange the sizes, two i32 a pair.

/// How many rows and entries a rank sends to another: the first thing exchanged.
struct BlockSize {
  std::int32_t num_rows = 0;
  std::int32_t num_entries = 0;
  bool operator==(const BlockSize&) const = default;
};
static_assert(sizeof(BlockSize) == 8);

/// Bytes of the block for `size`.
std::int64_t metadata_bytes(const BlockSize& size, ExchangeForm form);

/// Writes the block for one device; `out` has exactly metadata_bytes.
void encode_metadata(const SendLists& lists, std::int32_t device, ExchangeForm form,
                     std::span<std::byte> out);

/// Appends the rows of one source's block to `entries`. Throws kPeer naming `source` if sizes,
/// counts and slots do not fit together: sender and receiver disagree.
void decode_metadata(std::span<const std::byte> block, const BlockSize& size, ExchangeForm form,
                     std::int32_t num_slots, const std::string& source, RowEntries& entries);

}  // namespace coterie::exchange
