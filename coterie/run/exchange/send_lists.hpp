// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/row_entries.hpp"
#include "coterie/run/exchange/token_routing.hpp"

namespace coterie::exchange {

/// The rows that one rank sends, numbered device by device and token by token (in the classical
/// form then expert by expert): `reindex_by_device` without its empty places, made by prefix sums
/// in one pass of counting and one of filling.
struct SendLists {
  std::vector<std::int64_t> row_offsets;    ///< [num_devices + 1] rows for each device
  std::vector<std::int32_t> token_of_row;   ///< [rows] ascending within a device
  RowEntries entries;                       ///< of these rows; classical form: one entry a row
  std::vector<std::int32_t> pick_of_entry;  ///< [entries] token * top_k + place among its picks
  std::vector<std::int64_t> token_offsets;  ///< [num_tokens + 1] into rows_of_token
  std::vector<std::int32_t> rows_of_token;  ///< [rows] rows of each token, ascending by device

  [[nodiscard]] std::int32_t num_devices() const {
    return static_cast<std::int32_t>(row_offsets.size()) - 1;
  }
  [[nodiscard]] std::int64_t num_rows() const { return row_offsets.back(); }
  [[nodiscard]] std::int64_t num_rows_to(std::int32_t device) const {
    const auto d = static_cast<std::size_t>(device);
    return row_offsets[d + 1] - row_offsets[d];
  }
  /// Entries of all rows that go to a device.
  [[nodiscard]] std::int64_t num_entries_to(std::int32_t device) const {
    const auto d = static_cast<std::size_t>(device);
    return entries.offsets[static_cast<std::size_t>(row_offsets[d + 1])] -
           entries.offsets[static_cast<std::size_t>(row_offsets[d])];
  }
};

/// Fills `lists`, reusing its memory. The routing must have been checked.
void make_send_lists(const TokenRouting& routing, const PlacementIndex& index, ExchangeForm form,
                     SendLists& lists);

}  // namespace coterie::exchange
