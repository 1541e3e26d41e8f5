// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/run/comm/collective.hpp"
#include "coterie/run/comm/mpi_abort.hpp"

namespace coterie::comm {

/// Moves blocks among the ranks of MPI_COMM_WORLD, or of a part of them, one collective at a time.
///
/// Each rank sends each other rank one small message that says which call it is in and how many
/// bytes follow; blocks of up to a few KiB travel inside it. So ranks that disagree find out before
/// any payload is received, a missing rank can be named, and nothing ever waits inside MPI.
/// `exchange` and `close` are called by one thread at a time; `abort` by any.
class MpiTransport {
 public:
  /// Collective over all ranks.
  MpiTransport();
  ~MpiTransport();
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  /// A part of this group: the ranks that give the same color. Collective over this group. The
  /// part shares this group's failures; it is not closed, it just ends.
  [[nodiscard]] std::unique_ptr<MpiTransport> split(int color, std::chrono::milliseconds timeout);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  struct Call {
    CollectiveKind kind = CollectiveKind::kBarrier;
    int root = 0;
    /// [size] the block for each rank; may be larger than 2 GiB.
    std::span<const std::span<const std::byte>> send;
    /// [size] where the block of each rank goes.
    std::span<const std::span<std::byte>> receive;
    std::chrono::milliseconds timeout{0};
  };
  /// Throws kInternal if ranks disagree, kPeer if a rank is out of reach or has aborted. Any
  /// failure aborts the group.
  void exchange(const Call& call);

  /// See Communicator::abort. Returns when the message is out, after half a second at most.
  void abort(const std::string& message) noexcept { abort_->abort(message); }

  /// Waits until every rank closes, so that no rank leaves before the others have its data.
  void close(std::chrono::milliseconds timeout);

 private:
  struct Exchange;

  MpiTransport(MPI_Comm comm, std::shared_ptr<MpiAbort> abort, std::vector<int> world_ranks);

  void begin(Exchange& exchange);
  void progress(Exchange& exchange);
  void accept_header(Exchange& exchange, int from, int num_bytes);
  void throw_late(const Exchange& exchange) const;
  /// The number of a rank in MPI_COMM_WORLD, as messages call it.
  [[nodiscard]] int world_rank(int rank) const {
    return world_ranks_[static_cast<std::size_t>(rank)];
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::shared_ptr<MpiAbort> abort_;
  std::vector<int> world_ranks_;  ///< [size]
  int rank_ = 0;
  int size_ = 1;
  std::uint64_t sequence_ = 0;
  std::vector<std::byte> outbox_;  ///< [size][kMessageBytes] headers with short blocks, going out
  std::vector<std::byte> inbox_;   ///< the same, coming in
};

}  // namespace coterie::comm
