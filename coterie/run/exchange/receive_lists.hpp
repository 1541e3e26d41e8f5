// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/exchange/row_entries.hpp"

namespace coterie::exchange {

/// How received rows [first_row, first_row + num_rows) expand to one row an expert and merge back:
/// `reindex_by_expert` of these rows without its empty places, made by a counting sort.
struct ReceiveLists {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::vector<std::int64_t> expert_offsets;     ///< [num_slots + 1] expanded rows of each slot
  std::vector<std::int64_t> entry_offsets;      ///< [num_rows + 1] entries of each row, from 0
  std::vector<std::int32_t> row_of_expanded;    ///< [entries] received row, ascending in a slot
  std::vector<std::int32_t> expanded_of_entry;  ///< [entries] expanded row of each entry
};

/// Fills `lists` for a range of rows, reusing its memory. kInternal if a slot is out of range.
void make_receive_lists(const RowEntries& entries, std::int32_t num_slots, std::int64_t first_row,
                        std::int64_t num_rows, ReceiveLists& lists);

/// Cuts rows [first_row, end_row) into ranges of at most `max_entries` entries (a row with more
/// stands alone), in order. Returns the bounds [ranges + 1], beginning with first_row; no rows give
/// no range.
std::vector<std::int64_t> cut_rows(const RowEntries& entries, std::int64_t first_row,
                                   std::int64_t end_row, std::int64_t max_entries);

}  // namespace coterie::exchange
