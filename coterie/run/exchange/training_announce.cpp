// SPDX-License-Identifier: Apache-2.0
// How ranks agree on the lists of a batch.
#include <algorithm>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/exchange/training_exchange.hpp"
#include "coterie/run/exchange/training_metadata.hpp"

namespace coterie::exchange {
namespace {

using comm::Purpose;

std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// [members] sums of `width` neighbours each.
std::vector<std::int64_t> sums_of(std::span<const std::int64_t> values, std::size_t width) {
  std::vector<std::int64_t> sums;
  for (std::size_t first = 0; first < values.size(); first += width) {
    sums.push_back(sum(values.subspan(first, width)));
  }
  return sums;
}

std::span<std::byte> part(std::span<std::byte> bytes, std::int64_t first, std::int64_t count) {
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

/// [ranks] number of tokens of every rank whose tokens can reach this one, in order of arrival:
/// shard member by shard member, in each by rank of the expert group.
std::vector<std::int64_t> gather_token_counts(const RankGroups& groups, std::int64_t num_tokens) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(groups.expert->size()));
  groups.expert->all_gather(std::as_bytes(std::span(&num_tokens, 1)),
                            std::as_writable_bytes(std::span(counts)), Purpose::kMetadata);
  if (groups.shard == nullptr) {
    return counts;
  }
  std::vector<std::int64_t> all(counts.size() * static_cast<std::size_t>(groups.num_shards()));
  groups.shard->all_gather(std::as_bytes(std::span(counts)), std::as_writable_bytes(std::span(all)),
                           Purpose::kMetadata);
  return all;
}

/// Sends `out` (`bytes_to` to each device), receives what belongs to this rank at its place in the
/// result and the rest of the result from the shard group.
std::vector<std::byte> to_devices_of_all_shards(const RankGroups& groups,
                                                std::span<const std::byte> out,
                                                std::span<const std::int64_t> bytes_to,
                                                std::span<const std::int64_t> bytes_from) {
  const std::size_t width = bytes_to.size();
  const auto me = static_cast<std::size_t>(groups.shard_rank());
  const auto by_member = sums_of(bytes_from, width);
  std::vector<std::byte> all(static_cast<std::size_t>(sum(bytes_from)));
  const auto mine = part(all, sum(std::span(by_member).first(me)), by_member[me]);
  groups.expert->all_to_all(out, bytes_to, mine, bytes_from.subspan(me * width, width),
                            Purpose::kMetadata);
  if (groups.shard != nullptr) {
    gather_ragged(*groups.shard, by_member, all, Purpose::kMetadata);
  }
  return all;
}

}  // namespace

/// What all sources announce to this rank, in order of arrival.
struct TrainingExchange::Announcement {
  std::vector<std::int64_t> rows;         ///< [sources * blocks] rows, source by source
  std::vector<std::int64_t> num_entries;  ///< [sources]
};

std::shared_ptr<const TrainingLists> TrainingExchange::make_lists(
    const TokenRouting& routing, kernels::ConstMatrixView weights,
    std::span<const std::int64_t> source_offsets) {
  check_token_routing(routing, index_, where_);
  COTERIE_REQUIRE(weights.rows == routing.num_tokens && weights.columns == routing.top_k &&
                      (weights.rows <= 1 || weights.row_stride == weights.columns),
                  where_, ": routing weights are [", weights.rows, ", ", weights.columns,
                  "], not [", routing.num_tokens, ", ", routing.top_k, "] without gaps");
  COTERIE_REQUIRE(
      weights.type == kernels::DType::kFloat32 || weights.type == kernels::DType::kFloat64, where_,
      ": routing weights are neither float32 nor float64");
  auto lists = std::make_shared<TrainingLists>();
  lists->num_tokens = routing.num_tokens;
  lists->top_k = routing.top_k;
  lists->source_offsets = {0, routing.num_tokens};
  if (!source_offsets.empty()) {
    COTERIE_REQUIRE(groups_.expert == nullptr && source_offsets.size() >= 2 &&
                        source_offsets.front() == 0 &&
                        source_offsets.back() == routing.num_tokens &&
                        std::is_sorted(source_offsets.begin(), source_offsets.end()),
                    where_, ": offsets of sources must run from 0 to ", routing.num_tokens,
                    ", and only where one process stands for all devices");
    lists->source_offsets.assign(source_offsets.begin(), source_offsets.end());
  }
  make_send_lists(routing, index_, options_.form, lists->sent);
  const auto num_bytes =
      static_cast<std::size_t>(routing.num_tokens * routing.top_k * kernels::size_of(weights.type));
  lists->weights_sent.gather({static_cast<const std::byte*>(weights.data), num_bytes}, weights.type,
                             lists->sent.pick_of_entry);
  lists->sent.entries.weights.clear();
  if (groups_.expert == nullptr) {
    make_virtual_lists(*lists);
  } else {
    Announcement announcement;
    announce(*lists, announcement);
    make_device_lists(*lists, announcement);
  }
  return lists;
}

void TrainingExchange::make_virtual_lists(TrainingLists& lists) const {
  for (std::size_t s = 0; s + 1 < lists.source_offsets.size(); ++s) {
    lists.num_blocks = std::max(
        lists.num_blocks, num_blocks_of(lists.source_offsets[s + 1] - lists.source_offsets[s]));
  }
  std::vector<std::int32_t> arrival(lists.source_offsets.size() - 1);
  std::iota(arrival.begin(), arrival.end(), 0);
  const RowEntries& sent = lists.sent.entries;
  for (const std::int32_t device : local_devices_) {
    const auto d = static_cast<std::size_t>(device);
    const std::int64_t first_row = lists.sent.row_offsets[d];
    const std::int64_t end_row = lists.sent.row_offsets[d + 1];
    const std::int64_t first = sent.offsets[static_cast<std::size_t>(first_row)];
    const std::int64_t end = sent.offsets[static_cast<std::size_t>(end_row)];
    RowEntries arrived;
    for (std::int64_t row = first_row; row < end_row; ++row) {
      arrived.offsets.push_back(sent.offsets[static_cast<std::size_t>(row) + 1] - first);
    }
    arrived.slots.assign(sent.slots.begin() + first, sent.slots.begin() + end);
    std::vector<std::int32_t> index(static_cast<std::size_t>(end - first));
    std::iota(index.begin(), index.end(), static_cast<std::int32_t>(first));
    Scalars weights;
    weights.gather(lists.weights_sent, index);
    lists.devices.push_back(order_by_blocks(device, std::move(arrived), std::move(weights),
                                            rows_by_block(lists, device, lists.num_blocks),
                                            arrival));
  }
}

void TrainingExchange::announce(TrainingLists& lists, Announcement& announcement) {
  const auto tokens = gather_token_counts(groups_, lists.num_tokens);
  lists.num_blocks = num_blocks_of(*std::max_element(tokens.begin(), tokens.end()));
  const std::int64_t my_blocks = num_blocks_of(lists.num_tokens);
  std::vector<std::int32_t> out;
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    const auto rows = rows_by_block(lists, device, my_blocks);
    out.insert(out.end(), rows.begin(), rows.end());
    out.push_back(static_cast<std::int32_t>(lists.sent.num_entries_to(device)));
  }
  const std::vector<std::int64_t> bytes_to(static_cast<std::size_t>(index_.num_devices()),
                                           (my_blocks + 1) * 4);
  std::vector<std::int64_t> bytes_from;
  for (const std::int64_t count : tokens) {
    bytes_from.push_back((num_blocks_of(count) + 1) * 4);
  }
  const auto all =
      to_devices_of_all_shards(groups_, std::as_bytes(std::span(out)), bytes_to, bytes_from);
  const auto* next = reinterpret_cast<const std::int32_t*>(all.data());
  for (const std::int64_t count : tokens) {
    for (std::int64_t block = 0; block < lists.num_blocks; ++block) {
      announcement.rows.push_back(block < num_blocks_of(count) ? *next++ : 0);
    }
    announcement.num_entries.push_back(*next++);
  }
}

void TrainingExchange::make_device_lists(TrainingLists& lists, const Announcement& announcement) {
  const auto weight_type = lists.weights_sent.type();
  std::vector<std::int64_t> bytes_to;
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    bytes_to.push_back(
        training_metadata_bytes({lists.sent.num_rows_to(device), lists.sent.num_entries_to(device)},
                                options_.form, weight_type));
  }
  const auto num_blocks = static_cast<std::size_t>(lists.num_blocks);
  std::vector<TrainingBlockSize> sizes;
  std::vector<std::int64_t> bytes_from;
  for (std::size_t a = 0; a < announcement.num_entries.size(); ++a) {
    const auto rows = std::span(announcement.rows).subspan(a * num_blocks, num_blocks);
    sizes.push_back({sum(rows), announcement.num_entries[a]});
    if (std::any_of(rows.begin(), rows.end(), [](std::int64_t n) { return n < 0; }) ||
        sizes[a].num_entries < sizes[a].num_rows) {
      fail(ErrorCode::kPeer, where_, ": source ", a, " announced ", sizes[a].num_rows,
           " rows with ", sizes[a].num_entries, " entries");
    }
    bytes_from.push_back(training_metadata_bytes(sizes[a], options_.form, weight_type));
  }
  std::vector<std::byte> out(static_cast<std::size_t>(sum(bytes_to)));
  std::int64_t at = 0;
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    const std::int64_t count = bytes_to[static_cast<std::size_t>(device)];
    encode_training_metadata(lists, device, options_.form, part(out, at, count));
    at += count;
  }
  auto all = to_devices_of_all_shards(groups_, out, bytes_to, bytes_from);

  // Sources are numbered as ranks of one group in which the ranks of a shard group are neighbours.
  const auto num_devices = static_cast<std::size_t>(groups_.num_devices());
  const auto num_shards = static_cast<std::size_t>(groups_.num_shards());
  RowEntries arrived;
  Scalars weights(0, weight_type);
  std::vector<std::int32_t> arrival;
  std::vector<std::int64_t> rows(announcement.rows.size());
  at = 0;
  for (std::size_t a = 0; a < sizes.size(); ++a) {
    const std::size_t source = a % num_devices * num_shards + a / num_devices;
    decode_training_metadata(part(all, at, bytes_from[a]), sizes[a], options_.form,
                             index_.num_slots(local_devices_.front()),
                             join_message(where_, ": rank ", a % num_devices), arrived, weights);
    at += bytes_from[a];
    arrival.push_back(static_cast<std::int32_t>(source));
    for (std::size_t block = 0; block < num_blocks; ++block) {
      rows[source * num_blocks + block] = announcement.rows[a * num_blocks + block];
    }
  }
  lists.devices.push_back(order_by_blocks(local_devices_.front(), std::move(arrived),
                                          std::move(weights), rows, std::move(arrival)));
}

}  // namespace coterie::exchange
