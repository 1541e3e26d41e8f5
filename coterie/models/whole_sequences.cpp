// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/whole_sequences.hpp"

namespace coterie::models {

bool needs_whole_sequences(const gates::Gate& gate, const gates::OrderOptions& order) {
  const gates::CapacityOptions& capacity = order.capacity;
  return gate.selects_within_sequence() ||
         (capacity.factor > 0 && capacity.scope == gates::CapacityScope::kSequence);
}

RowBlocks whole_sequence_blocks(const std::vector<std::int64_t>& offsets, const RowBlocks& blocks) {
  RowBlocks whole;
  std::size_t s = 0;
  std::int64_t end = 0;
  for (const std::int64_t count : blocks.num_rows) {
    end += count;
    const std::int64_t first = offsets[s];
    while (offsets[s] < end) {
      ++s;
    }
    whole.num_rows.push_back(offsets[s] - first);
  }
  return whole;
}

at::Tensor move_rows(const at::Tensor& x, const RowBlocks& from, const RowBlocks& to,
                     comm::Communicator& group) {
  if (group.size() == 1) {
    return x;
  }
  const std::int64_t first = to.first(group.rank());
  return gather_rows(x, from, group)
      .slice(0, first, first + to.num_rows[static_cast<std::size_t>(group.rank())]);
}

}  // namespace coterie::models
