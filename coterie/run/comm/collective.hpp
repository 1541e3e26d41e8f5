// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/run/comm/communicator.hpp"

namespace coterie::comm {

/// Which call of Communicator; ranks of a group must agree on it.
enum class CollectiveKind : std::uint8_t {
  kAllToAll,
  kAllGather,
  kBroadcast,
  kBarrier,
  kReduceScatter,
  kAllReduce,
  kLeave,  ///< the group is closed
  kSplit,
};

/// Name as in error messages: "all_to_all", "barrier", ...
const char* name_of(CollectiveKind kind) noexcept;

/// "all_to_all (collective 7)": how messages name one call.
std::string describe(CollectiveKind kind, std::uint64_t sequence);

/// "rank 3", "ranks 1, 3": ascending, each once.
std::string list_ranks(std::vector<int> ranks);

/// Throws kInternal unless there is one size per rank, none is negative, and they add up to the
/// sizes of the buffers.
void check_all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                      std::span<const std::byte> receive,
                      std::span<const std::int64_t> receive_bytes, int size);

/// Throws kInternal unless `receive` holds `size` times `send`.
void check_all_gather(std::span<const std::byte> send, std::span<const std::byte> receive,
                      int size);

/// Throws kInternal unless 0 <= root < size.
void check_root(int root, int size);

/// Throws kInternal unless `color` is one.
void check_color(int color);

/// The ranks whose color in `colors` [ranks] is that of rank `rank`, ascending.
std::vector<int> ranks_of_color(std::span<const int> colors, int rank);

/// [n] where each block starts when blocks of these sizes lie one after the other.
std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> sizes);

/// Adds to `traffic` what one call of a rank sends to others. Logical bytes: a block that several
/// ranks get counts once for each of them, whatever route the engine takes.
void count_all_to_all(Traffic& traffic, std::span<const std::int64_t> send_bytes, int rank,
                      Purpose purpose);
void count_to_all_others(Traffic& traffic, std::int64_t num_bytes, int size, Purpose purpose);

}  // namespace coterie::comm
