// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/row_movement.hpp"

#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

using kernels::DType;

std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::vector<std::int64_t> times(std::span<const std::int64_t> values, std::int64_t factor) {
  std::vector<std::int64_t> products(values.begin(), values.end());
  for (std::int64_t& product : products) {
    product *= factor;
  }
  return products;
}

std::span<std::byte> part(std::span<std::byte> bytes, std::int64_t first, std::int64_t count) {
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

/// What the ranks of the expert group send to member `shard` of the shard group.
std::span<const std::int64_t> rows_of_shard(const MovedRows& moved, std::size_t shard) {
  return std::span(moved.from).subspan(shard * moved.to.size(), moved.to.size());
}

/// [shards] rows of each member.
std::vector<std::int64_t> rows_by_shard(const MovedRows& moved) {
  std::vector<std::int64_t> rows;
  for (std::size_t shard = 0; shard * moved.to.size() < moved.from.size(); ++shard) {
    rows.push_back(sum(rows_of_shard(moved, shard)));
  }
  return rows;
}

/// to[i] = ((from_0[i] + from_1[i]) + from_2[i]) + ..., blocks of `count` one after the other.
template <typename T>
void sum_blocks(const std::byte* from, std::size_t num_blocks, std::int64_t count, std::byte* to) {
  const T* values = reinterpret_cast<const T*>(from);
  T* sums = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < count; ++i) {
    T value = values[i];
    for (std::size_t block = 1; block < num_blocks; ++block) {
      value = value + values[static_cast<std::int64_t>(block) * count + i];
    }
    sums[i] = value;
  }
}

void sum_bfloat16_blocks(const std::byte* from, std::size_t num_blocks, std::int64_t count,
                         std::byte* to) {
  const auto* values = reinterpret_cast<const std::uint16_t*>(from);
  auto* sums = reinterpret_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < count; ++i) {
    float value = kernels::from_bfloat16(values[i]);
    for (std::size_t block = 1; block < num_blocks; ++block) {
      value = value + kernels::from_bfloat16(values[static_cast<std::int64_t>(block) * count + i]);
    }
    sums[i] = kernels::to_bfloat16(value);
  }
}

}  // namespace

void gather_ragged(comm::Communicator& group, std::span<const std::int64_t> bytes,
                   std::span<std::byte> all, comm::Purpose purpose) {
  std::int64_t at = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t count = bytes[static_cast<std::size_t>(rank)];
    group.broadcast(part(all, at, count), rank, purpose);
    at += count;
  }
}

GroupMovement::GroupMovement(const RankGroups& groups) : groups_(groups) {
  COTERIE_CHECK(groups_.expert != nullptr, "rows move between ranks of an expert group");
}

void GroupMovement::to_devices(const MovedRows& moved, std::span<const std::byte> out,
                               std::span<std::byte> in, comm::Purpose purpose) {
  exchange_out(moved, out, in, purpose);
  gather(moved, in, purpose);
}

void GroupMovement::exchange_out(const MovedRows& moved, std::span<const std::byte> out,
                                 std::span<std::byte> in, comm::Purpose purpose) {
  const auto me = static_cast<std::size_t>(groups_.shard_rank());
  const auto bytes = times(rows_by_shard(moved), moved.row_bytes());
  const std::int64_t first = sum(std::span(bytes).first(me));
  groups_.expert->all_to_all(out, times(moved.to, moved.row_bytes()), part(in, first, bytes[me]),
                             times(rows_of_shard(moved, me), moved.row_bytes()), purpose);
}

void GroupMovement::gather(const MovedRows& moved, std::span<std::byte> in, comm::Purpose purpose) {
  if (groups_.shard != nullptr) {
    gather_ragged(*groups_.shard, times(rows_by_shard(moved), moved.row_bytes()), in, purpose);
  }
}

void GroupMovement::scatter(const MovedRows& moved, std::span<std::byte> in,
                            comm::Purpose purpose) {
  if (groups_.shard == nullptr) {
    return;
  }
  const auto me = static_cast<std::size_t>(groups_.shard_rank());
  const auto rows = rows_by_shard(moved);
  const auto bytes = times(rows, moved.row_bytes());
  const std::vector<std::int64_t> receive_bytes(rows.size(), bytes[me]);
  received_.resize(static_cast<std::size_t>(sum(receive_bytes)));
  groups_.shard->all_to_all(in, bytes, received_, receive_bytes, purpose);
  const auto mine = part(in, sum(std::span(bytes).first(me)), bytes[me]);
  const std::int64_t count = rows[me] * moved.columns;
  switch (moved.type) {
    case DType::kFloat64:
      sum_blocks<double>(received_.data(), rows.size(), count, mine.data());
      return;
    case DType::kFloat32:
      sum_blocks<float>(received_.data(), rows.size(), count, mine.data());
      return;
    case DType::kBfloat16:
      sum_bfloat16_blocks(received_.data(), rows.size(), count, mine.data());
      return;
    default:
      fail(ErrorCode::kUnsupported,
           "rows of an expert cut over ranks must come home in a type that adds up, such as "
           "float32");
  }
}

void GroupMovement::to_homes(const MovedRows& moved, std::span<std::byte> in,
                             std::span<std::byte> out, comm::Purpose purpose) {
  scatter(moved, in, purpose);
  exchange_home(moved, in, out, purpose);
}

void GroupMovement::exchange_home(const MovedRows& moved, std::span<std::byte> in,
                                  std::span<std::byte> out, comm::Purpose purpose) {
  const auto me = static_cast<std::size_t>(groups_.shard_rank());
  const auto bytes = times(rows_by_shard(moved), moved.row_bytes());
  const auto mine = part(in, sum(std::span(bytes).first(me)), bytes[me]);
  groups_.expert->all_to_all(mine, times(rows_of_shard(moved, me), moved.row_bytes()), out,
                             times(moved.to, moved.row_bytes()), purpose);
}

}  // namespace coterie::exchange
