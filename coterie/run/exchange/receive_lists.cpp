// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/receive_lists.hpp"

#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::exchange {

void make_receive_lists(const RowEntries& entries, std::int32_t num_slots, std::int64_t first_row,
                        std::int64_t num_rows, ReceiveLists& lists) {
  lists.first_row = first_row;
  lists.num_rows = num_rows;
  const auto first_entry =
      static_cast<std::size_t>(entries.offsets[static_cast<std::size_t>(first_row)]);
  const auto end_entry =
      static_cast<std::size_t>(entries.offsets[static_cast<std::size_t>(first_row + num_rows)]);

  lists.expert_offsets.assign(static_cast<std::size_t>(num_slots) + 1, 0);
  for (std::size_t entry = first_entry; entry < end_entry; ++entry) {
    COTERIE_CHECK(entries.slots[entry] < num_slots, "entry ", entry, " names slot ",
                  entries.slots[entry], " of ", num_slots);
    ++lists.expert_offsets[entries.slots[entry] + std::size_t{1}];
  }
  std::partial_sum(lists.expert_offsets.begin(), lists.expert_offsets.end(),
                   lists.expert_offsets.begin());

  lists.row_of_expanded.resize(end_entry - first_entry);
  lists.expanded_of_entry.resize(end_entry - first_entry);
  lists.entry_offsets.resize(static_cast<std::size_t>(num_rows) + 1);
  for (std::size_t i = 0; i < lists.entry_offsets.size(); ++i) {
    lists.entry_offsets[i] = entries.offsets[static_cast<std::size_t>(first_row) + i] -
                             static_cast<std::int64_t>(first_entry);
  }
  std::vector<std::int64_t> next(lists.expert_offsets.begin(), lists.expert_offsets.end() - 1);
  for (std::int64_t row = first_row; row < first_row + num_rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    for (auto entry = static_cast<std::size_t>(entries.offsets[r]);
         entry < static_cast<std::size_t>(entries.offsets[r + 1]); ++entry) {
      const std::int64_t expanded = next[entries.slots[entry]]++;
      lists.row_of_expanded[static_cast<std::size_t>(expanded)] = static_cast<std::int32_t>(row);
      lists.expanded_of_entry[entry - first_entry] = static_cast<std::int32_t>(expanded);
    }
  }
}

std::vector<std::int64_t> cut_rows(const RowEntries& entries, std::int64_t first_row,
                                   std::int64_t end_row, std::int64_t max_entries) {
  std::vector<std::int64_t> cuts = {first_row};
  for (std::int64_t row = first_row; row < end_row; ++row) {
    const std::int64_t begin = entries.offsets[static_cast<std::size_t>(cuts.back())];
    const std::int64_t end = entries.offsets[static_cast<std::size_t>(row) + 1];
    if (row > cuts.back() && end - begin > max_entries) {
      cuts.push_back(row);
    }
  }
  if (end_row > first_row) {
    cuts.push_back(end_row);
  }
  return cuts;
}

}  // namespace coterie::exchange
