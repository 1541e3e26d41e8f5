// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/collective.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::comm {

const char* name_of(CollectiveKind kind) noexcept {
  switch (kind) {
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kLeave: return "leave";
    case CollectiveKind::kSplit: return "split";
  }
  return "unknown collective";
}

std::string describe(CollectiveKind kind, std::uint64_t sequence) {
  return join_message(name_of(kind), " (collective ", sequence, ")");
}

std::string list_ranks(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  std::string list = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    list += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  }
  return list;
}

namespace {

void check_sizes(std::span<const std::int64_t> sizes, std::size_t num_bytes, int size,
                 const char* side) {
  COTERIE_CHECK(sizes.size() == static_cast<std::size_t>(size), "all_to_all: ", sizes.size(), " ",
                side, " sizes for ", size, " ranks");
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    COTERIE_CHECK(sizes[r] >= 0, "all_to_all: ", side, " size ", sizes[r], " for rank ", r);
    sum += sizes[r];
  }
  COTERIE_CHECK(static_cast<std::size_t>(sum) == num_bytes, "all_to_all: ", side,
                " sizes add up to ", sum, " bytes, the buffer has ", num_bytes);
}

}  // namespace

void check_all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                      std::span<const std::byte> receive,
                      std::span<const std::int64_t> receive_bytes, int size) {
  check_sizes(send_bytes, send.size(), size, "send");
  check_sizes(receive_bytes, receive.size(), size, "receive");
}

void check_all_gather(std::span<const std::byte> send, std::span<const std::byte> receive,
                      int size) {
  COTERIE_CHECK(receive.size() == send.size() * static_cast<std::size_t>(size),
                "all_gather: the receive buffer has ", receive.size(), " bytes, ", size,
                " ranks send ", send.size(), " each");
}

void check_root(int root, int size) {
  COTERIE_CHECK(root >= 0 && root < size, "broadcast: root ", root, " of ", size, " ranks");
}

void check_color(int color) {
  COTERIE_CHECK(color >= 0, "split: color ", color);
}

std::vector<int> ranks_of_color(std::span<const int> colors, int rank) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < colors.size(); ++r) {
    if (colors[r] == colors[static_cast<std::size_t>(rank)]) {
      ranks.push_back(static_cast<int>(r));
    }
  }
  return ranks;
}

std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> offsets(sizes.size());
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    offsets[i] = sum;
    sum += sizes[i];
  }
  return offsets;
}

void count_all_to_all(Traffic& traffic, std::span<const std::int64_t> send_bytes, int rank,
                      Purpose purpose) {
  for (std::size_t r = 0; r < send_bytes.size(); ++r) {
    if (r != static_cast<std::size_t>(rank)) {
      traffic.bytes_sent[static_cast<std::size_t>(purpose)] +=
          static_cast<std::uint64_t>(send_bytes[r]);
    }
  }
}

void count_to_all_others(Traffic& traffic, std::int64_t num_bytes, int size, Purpose purpose) {
  traffic.bytes_sent[static_cast<std::size_t>(purpose)] +=
      static_cast<std::uint64_t>(num_bytes) * static_cast<std::uint64_t>(size - 1);
}

}  // namespace coterie::comm
