// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/send_lists.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

/// One (token, expert) pair with its place on the serving device.
struct Pick {
  std::int32_t device;
  std::int32_t slot;
  std::size_t index;  ///< among all picks
};

/// The picks of one token without the -1 ids, ascending by device, then by slot.
class SortedPicks {
 public:
  std::span<const Pick> of(const TokenRouting& routing, const PlacementIndex& index,
                           std::int64_t token) {
    std::size_t count = 0;
    for (std::int32_t i = 0; i < routing.top_k; ++i) {
      const std::int32_t expert = routing.expert_ids[routing.pick(token, i)];
      if (expert < 0) {
        continue;
      }
      const std::int32_t device = routing.device(index, token, i);
      const Pick pick{device, index.slot_of(device, expert), routing.pick(token, i)};
      COTERIE_DCHECK(pick.slot >= 0, "token ", token, " expert ", expert, " device ", device);
      std::size_t place = count++;
      for (; place > 0 && is_before(pick, picks_[place - 1]); --place) {
        picks_[place] = picks_[place - 1];
      }
      picks_[place] = pick;
    }
    return std::span(picks_).first(count);
  }

 private:
  static bool is_before(const Pick& a, const Pick& b) {
    return a.device != b.device ? a.device < b.device : a.slot < b.slot;
  }
  std::array<Pick, kMaxTopK> picks_;
};

/// Whether pick i of a token begins a row of its own.
bool begins_row(std::span<const Pick> picks, std::size_t i, ExchangeForm form) {
  return i == 0 || form == ExchangeForm::kPerExpert || picks[i].device != picks[i - 1].device;
}

/// Rows and entries of each device, and rows of each token, as running sums.
void count(const TokenRouting& routing, const PlacementIndex& index, ExchangeForm form,
           SendLists& lists, std::vector<std::int64_t>& entry_offsets) {
  SortedPicks sorted;
  for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
    const auto picks = sorted.of(routing, index, token);
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < picks.size(); ++i) {
      const auto device = static_cast<std::size_t>(picks[i].device);
      if (begins_row(picks, i, form)) {
        ++lists.row_offsets[device + 1];
        ++rows;
      }
      ++entry_offsets[device + 1];
    }
    lists.token_offsets[static_cast<std::size_t>(token) + 1] = rows;
  }
  const auto accumulate = [](std::vector<std::int64_t>& sums) {
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
  };
  accumulate(lists.row_offsets);
  accumulate(lists.token_offsets);
  accumulate(entry_offsets);
}

}  // namespace

void make_send_lists(const TokenRouting& routing, const PlacementIndex& index, ExchangeForm form,
                     SendLists& lists) {
  const auto num_devices = static_cast<std::size_t>(index.num_devices());
  std::vector<std::int64_t> next_entry(num_devices + 1, 0);
  lists.row_offsets.assign(num_devices + 1, 0);
  lists.token_offsets.assign(static_cast<std::size_t>(routing.num_tokens) + 1, 0);
  count(routing, index, form, lists, next_entry);

  const auto num_rows = static_cast<std::size_t>(lists.num_rows());
  const auto num_entries = static_cast<std::size_t>(next_entry.back());
  lists.token_of_row.resize(num_rows);
  lists.rows_of_token.resize(num_rows);
  lists.entries.offsets.assign(num_rows + 1, 0);
  lists.entries.offsets[num_rows] = next_entry.back();
  lists.entries.slots.resize(num_entries);
  lists.entries.weights.resize(num_entries);
  lists.pick_of_entry.resize(num_entries);

  std::vector<std::int64_t> next_row(lists.row_offsets.begin(), lists.row_offsets.end() - 1);
  SortedPicks sorted;
  std::size_t next_of_token = 0;
  for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
    const auto picks = sorted.of(routing, index, token);
    for (std::size_t i = 0; i < picks.size(); ++i) {
      const auto device = static_cast<std::size_t>(picks[i].device);
      if (begins_row(picks, i, form)) {
        const auto row = static_cast<std::size_t>(next_row[device]++);
        lists.token_of_row[row] = static_cast<std::int32_t>(token);
        lists.rows_of_token[next_of_token++] = static_cast<std::int32_t>(row);
        lists.entries.offsets[row] = next_entry[device];
      }
      const auto entry = static_cast<std::size_t>(next_entry[device]++);
      lists.entries.slots[entry] = static_cast<std::uint16_t>(picks[i].slot);
      lists.entries.weights[entry] =
          routing.weights.empty() ? 1.0F : routing.weights[picks[i].index];
      lists.pick_of_entry[entry] = static_cast<std::int32_t>(picks[i].index);
    }
  }
}

}  // namespace coterie::exchange
