// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace coterie::exchange {

/// What the device that gets a row must know of it: which of its experts want it and with what
/// weight. Rows are stored one after another; entries of a row ascend by slot, that is by expert.
struct RowEntries {
  std::vector<std::int64_t> offsets = {0};  ///< [rows + 1] into the entries
  std::vector<std::uint16_t> slots;         ///< [entries] local slot on the receiving device
  std::vector<float> weights;               ///< [entries] routing weight

  [[nodiscard]] std::int64_t num_rows() const {
    return static_cast<std::int64_t>(offsets.size()) - 1;
  }
  [[nodiscard]] std::int64_t num_entries() const { return offsets.back(); }
  bool operator==(const RowEntries&) const = default;
};

}  // namespace coterie::exchange
