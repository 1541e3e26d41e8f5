// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/reindex.hpp"

#include <algorithm>

namespace coterie::exchange {

Matrix<std::int32_t> reindex_by_device(const TokenRouting& routing, const PlacementIndex& index) {
  const auto num_devices = static_cast<std::size_t>(index.num_devices());
  Matrix<std::int32_t> rows(num_devices, static_cast<std::size_t>(routing.num_tokens), -1);
  std::int32_t next = 0;
  for (std::int32_t device = 0; device < index.num_devices(); ++device) {
    for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
      for (std::int32_t i = 0; i < routing.top_k; ++i) {
        if (routing.expert_ids[routing.pick(token, i)] >= 0 &&
            routing.device(index, token, i) == device) {
          rows(static_cast<std::size_t>(device), static_cast<std::size_t>(token)) = next++;
          break;
        }
      }
    }
  }
  return rows;
}

Matrix<std::int32_t> reindex_by_expert(const RowEntries& received, std::int32_t num_slots) {
  const auto num_rows = static_cast<std::size_t>(received.num_rows());
  Matrix<std::int32_t> expanded(static_cast<std::size_t>(num_slots), num_rows, -1);
  std::int32_t next = 0;
  for (std::size_t slot = 0; slot < expanded.rows(); ++slot) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      const auto begin = received.slots.begin() + received.offsets[row];
      const auto end = received.slots.begin() + received.offsets[row + 1];
      if (std::find(begin, end, slot) != end) {
        expanded(slot, row) = next++;
      }
    }
  }
  return expanded;
}

}  // namespace coterie::exchange
