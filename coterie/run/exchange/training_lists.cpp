// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/training_lists.hpp"

#include <algorithm>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

/// Where the rows of each (source, block) begin among what arrived: [sources * blocks + 1], at
/// s * blocks + b; in order of arrival, a source's blocks are neighbours.
std::vector<std::int64_t> arrival_starts(std::span<const std::int64_t> rows,
                                         const std::vector<std::int32_t>& arrival,
                                         std::size_t num_blocks) {
  std::vector<std::int64_t> starts(rows.size());
  std::int64_t next = 0;
  for (const std::int32_t source : arrival) {
    for (std::size_t block = 0; block < num_blocks; ++block) {
      const std::size_t at = static_cast<std::size_t>(source) * num_blocks + block;
      starts[at] = next;
      next += rows[at];
    }
  }
  return starts;
}

/// Entries and weights of rows taken over one after the other.
class EntriesCopy {
 public:
  EntriesCopy(const RowEntries& from, const Scalars& weights, DeviceLists& to)
      : from_(from), to_(to) {
    to_.entries.offsets.reserve(from.offsets.size());
    to_.entries.slots.reserve(from.slots.size());
    index_.reserve(from.slots.size());
    weights_ = &weights;
  }
  void add_row(std::int64_t row) {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t entry = from_.offsets[r]; entry < from_.offsets[r + 1]; ++entry) {
      to_.entries.slots.push_back(from_.slots[static_cast<std::size_t>(entry)]);
      index_.push_back(static_cast<std::int32_t>(entry));
    }
    to_.entries.offsets.push_back(std::ssize(to_.entries.slots));
  }
  void finish() { to_.weights.gather(*weights_, index_); }

 private:
  const RowEntries& from_;
  const Scalars* weights_;
  DeviceLists& to_;
  std::vector<std::int32_t> index_;
};

}  // namespace

std::int64_t DeviceLists::num_rows_from(std::int32_t source, const BlockRange& blocks) const {
  std::int64_t sum = 0;
  for (std::int64_t block = blocks.first; block < blocks.end; ++block) {
    sum += segment(block, source).num_rows;
  }
  return sum;
}

std::vector<Segment> DeviceLists::segments(const BlockRange& blocks) const {
  std::vector<Segment> found;
  for (const std::int32_t source : arrival) {
    for (std::int64_t block = blocks.first; block < blocks.end; ++block) {
      const Segment next = segment(block, source);
      if (next.num_rows == 0) {
        continue;
      }
      if (!found.empty() && found.back().first_row + found.back().num_rows == next.first_row) {
        found.back().num_rows += next.num_rows;
      } else {
        found.push_back(next);
      }
    }
  }
  return found;
}

void DeviceLists::places(const BlockRange& blocks, std::vector<std::int32_t>& place_of_row) const {
  const BlockRange rows = rows_of(blocks);
  place_of_row.resize(static_cast<std::size_t>(rows.end - rows.first));
  std::int32_t place = 0;
  for (const Segment& segment : segments(blocks)) {
    for (std::int64_t i = 0; i < segment.num_rows; ++i) {
      place_of_row[static_cast<std::size_t>(segment.first_row + i - rows.first)] = place++;
    }
  }
}

BlockRange TrainingLists::tokens_of(std::size_t source, const BlockRange& blocks) const {
  const std::int64_t first = source_offsets[source];
  const std::int64_t end = source_offsets[source + 1];
  return {std::min(first + blocks.first * kTokensPerBlock, end),
          std::min(first + blocks.end * kTokensPerBlock, end)};
}

BlockRange TrainingLists::rows_sent(std::int32_t device, const BlockRange& tokens) const {
  const auto d = static_cast<std::size_t>(device);
  const auto begin = sent.token_of_row.begin();
  const auto first = begin + sent.row_offsets[d];
  const auto end = begin + sent.row_offsets[d + 1];
  return {std::lower_bound(first, end, tokens.first) - begin,
          std::lower_bound(first, end, tokens.end) - begin};
}

DeviceLists order_by_blocks(std::int32_t device, RowEntries arrived, Scalars weights,
                            std::span<const std::int64_t> rows, std::vector<std::int32_t> arrival) {
  DeviceLists lists;
  lists.device = device;
  const std::size_t num_sources = arrival.size();
  const std::size_t num_blocks = num_sources == 0 ? 0 : rows.size() / num_sources;
  lists.starts.assign(1, 0);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t source = 0; source < num_sources; ++source) {
      lists.starts.push_back(lists.starts.back() + rows[source * num_blocks + block]);
    }
  }
  COTERIE_CHECK(lists.starts.back() == arrived.num_rows(), "blocks hold ", lists.starts.back(),
                " of ", arrived.num_rows(), " rows");
  if (num_sources == 1) {  // numbered as they arrive
    lists.arrival = std::move(arrival);
    lists.entries = std::move(arrived);
    lists.entries.weights.clear();
    lists.weights = std::move(weights);
    return lists;
  }
  const auto starts = arrival_starts(rows, arrival, num_blocks);
  EntriesCopy copy(arrived, weights, lists);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t source = 0; source < num_sources; ++source) {
      const std::size_t at = source * num_blocks + block;
      for (std::int64_t i = 0; i < rows[at]; ++i) {
        copy.add_row(starts[at] + i);
      }
    }
  }
  copy.finish();
  lists.arrival = std::move(arrival);
  return lists;
}

std::vector<std::int64_t> rows_by_block(const TrainingLists& lists, std::int32_t device,
                                        std::int64_t num_blocks) {
  std::vector<std::int64_t> rows;
  for (std::size_t source = 0; source + 1 < lists.source_offsets.size(); ++source) {
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const BlockRange range = lists.rows_sent(device, lists.tokens_of(source, {block, block + 1}));
      rows.push_back(range.end - range.first);
    }
  }
  return rows;
}

}  // namespace coterie::exchange
