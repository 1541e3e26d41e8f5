// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/parallel/ordered_sum.hpp"

#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::parallel {
namespace {

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

/// To the nearest bf16, ties to even; a NaN stays one.
std::uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

template <typename T>
void add_blocks(const std::byte* parts, std::size_t count, int num_ranks, std::byte* out) {
  const T* in = reinterpret_cast<const T*>(parts);
  T* sum = reinterpret_cast<T*>(out);
  std::copy_n(in, count, sum);
  for (int r = 1; r < num_ranks; ++r) {
    const T* next = in + static_cast<std::size_t>(r) * count;
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += next[i];
    }
  }
}

void add_bf16_blocks(const std::byte* parts, std::size_t count, int num_ranks, std::byte* out) {
  const auto* in = reinterpret_cast<const std::uint16_t*>(parts);
  auto* sum = reinterpret_cast<std::uint16_t*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    float total = widened(in[i]);
    for (int r = 1; r < num_ranks; ++r) {
      total += widened(in[static_cast<std::size_t>(r) * count + i]);
    }
    sum[i] = narrowed(total);
  }
}

/// `parts` [ranks][count] added in rank order.
void add_in_rank_order(const std::byte* parts, std::size_t count, int num_ranks, SumType type,
                       std::byte* out) {
  switch (type) {
    case SumType::kFloat32: return add_blocks<float>(parts, count, num_ranks, out);
    case SumType::kFloat64: return add_blocks<double>(parts, count, num_ranks, out);
    case SumType::kInt64: return add_blocks<std::int64_t>(parts, count, num_ranks, out);
    case SumType::kBfloat16: return add_bf16_blocks(parts, count, num_ranks, out);
  }
}

std::vector<std::int64_t> share_counts(std::int64_t count, int num_ranks) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < num_ranks; ++r) {
    counts.push_back(share_of(count, num_ranks, r).size());
  }
  return counts;
}

std::vector<std::int64_t> in_bytes(std::span<const std::int64_t> counts, SumType type) {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : counts) {
    bytes.push_back(count * size_of(type));
  }
  return bytes;
}

Numbers part_of(const Numbers& values, const Share& share) {
  return {static_cast<std::byte*>(values.data) + share.begin * size_of(values.type), share.size(),
          values.type};
}

}  // namespace

std::int64_t size_of(SumType type) noexcept {
  switch (type) {
    case SumType::kBfloat16: return 2;
    case SumType::kFloat32: return 4;
    case SumType::kFloat64:
    case SumType::kInt64: return 8;
  }
  return 0;
}

void reduce_scatter_blocks(comm::Communicator& group, const Numbers& values,
                           std::span<const std::int64_t> counts, const Numbers& sum,
                           comm::Purpose purpose) {
  COTERIE_CHECK(std::ssize(counts) == group.size(), counts.size(), " counts");
  const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())];
  COTERIE_CHECK(sum.count == mine && sum.type == values.type, "a sum of ", sum.count, " numbers, ",
                mine, " are this rank's");
  if (group.size() == 1) {
    if (sum.data != values.data && mine > 0) {
      std::memcpy(sum.data, values.data, sum.bytes().size());
    }
    return;
  }
  std::vector<std::byte> parts(static_cast<std::size_t>(group.size()) * sum.bytes().size());
  const std::vector<std::int64_t> receive_bytes(counts.size(), mine * size_of(values.type));
  group.all_to_all(values.bytes(), in_bytes(counts, values.type), parts, receive_bytes, purpose);
  if (mine > 0) {
    add_in_rank_order(parts.data(), static_cast<std::size_t>(mine), group.size(), values.type,
                      static_cast<std::byte*>(sum.data));
  }
}

void all_gather_blocks(comm::Communicator& group, const Numbers& block,
                       std::span<const std::int64_t> counts, const Numbers& all,
                       comm::Purpose purpose) {
  COTERIE_CHECK(std::ssize(counts) == group.size(), counts.size(), " counts");
  if (group.size() == 1) {
    COTERIE_CHECK(block.count == all.count, block.count, " numbers into ", all.count);
    if (all.data != block.data && all.count > 0) {
      std::memcpy(all.data, block.data, all.bytes().size());
    }
    return;
  }
  // One copy of the block for each rank: what leaves is what an all-gather of equal blocks counts.
  const std::span<const std::byte> mine = block.bytes();
  std::vector<std::byte> send;
  send.reserve(mine.size() * counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    send.insert(send.end(), mine.begin(), mine.end());
  }
  const std::vector<std::int64_t> send_bytes(counts.size(), std::ssize(mine));
  group.all_to_all(send, send_bytes, all.bytes(), in_bytes(counts, all.type), purpose);
}

Share reduce_scatter(comm::Communicator& group, const Numbers& values, comm::Purpose purpose) {
  const Share share = share_of(values.count, group.size(), group.rank());
  const std::vector<std::int64_t> counts = share_counts(values.count, group.size());
  reduce_scatter_blocks(group, values, counts, part_of(values, share), purpose);
  return share;
}

void all_gather_shares(comm::Communicator& group, const Numbers& values, comm::Purpose purpose) {
  if (group.size() == 1) {
    return;
  }
  const Share share = share_of(values.count, group.size(), group.rank());
  const std::span<const std::byte> mine = part_of(values, share).bytes();
  const std::vector<std::byte> block(mine.begin(), mine.end());
  all_gather_blocks(group, {const_cast<std::byte*>(block.data()), share.size(), values.type},
                    share_counts(values.count, group.size()), values, purpose);
}

void all_reduce(comm::Communicator& group, const Numbers& values, comm::Purpose purpose) {
  static_cast<void>(reduce_scatter(group, values, purpose));
  all_gather_shares(group, values, purpose);
}

}  // namespace coterie::parallel
