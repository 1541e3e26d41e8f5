// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/parallel/layout.hpp"

namespace coterie::parallel {

/// Element types that can be summed over ranks.
enum class SumType : std::uint8_t { kFloat32, kFloat64, kBfloat16, kInt64 };

/// Bytes of one element.
std::int64_t size_of(SumType type) noexcept;

/// Numbers somewhere in memory that belongs to somebody else.
struct Numbers {
  void* data = nullptr;
  std::int64_t count = 0;
  SumType type = SumType::kFloat32;

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data), static_cast<std::size_t>(count * size_of(type))};
  }
};

// Sums over the ranks of a group. Each element is added in the order of ranks, 0 first, on one
// rank, in its own type (bf16: in fp32, rounded once): the same bits on every rank, from run to
// run, and however the elements are cut into calls. Every rank calls with the same count and type.

/// `values` of every rank become the sum.
void all_reduce(comm::Communicator& group, const Numbers& values,
                comm::Purpose purpose = comm::Purpose::kGradient);

/// Only elements [share.begin, share.end) of the sum are formed, in place; the others of `values`
/// keep what they were. share = share_of(count, group.size(), group.rank()).
Share reduce_scatter(comm::Communicator& group, const Numbers& values,
                     comm::Purpose purpose = comm::Purpose::kGradient);

/// The other half of all_reduce: each rank's share of `values` reaches every rank.
void all_gather_shares(comm::Communicator& group, const Numbers& values,
                       comm::Purpose purpose = comm::Purpose::kGradient);

/// Reduce-scatter of consecutive blocks of any sizes: `counts[r]` elements of `values` are for rank
/// r (every rank knows all counts); `sum` gets the sum of this rank's block over all ranks. Used
/// for rows, whose blocks differ from rank to rank.
void reduce_scatter_blocks(comm::Communicator& group, const Numbers& values,
                           std::span<const std::int64_t> counts, const Numbers& sum,
                           comm::Purpose purpose);

/// Every rank gives a block, of any size that all know (`counts[r]` elements from rank r); `all`
/// holds them in rank order.
void all_gather_blocks(comm::Communicator& group, const Numbers& block,
                       std::span<const std::int64_t> counts, const Numbers& all,
                       comm::Purpose purpose);

}  // namespace coterie::parallel
