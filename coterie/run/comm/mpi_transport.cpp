// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/mpi_transport.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/backoff.hpp"
#include "coterie/run/comm/mpi_runtime.hpp"

namespace coterie::comm {

namespace {

constexpr int kHeaderTag = 1;
constexpr int kPayloadTag = 2;
/// Fits, with the header of the library, what Open MPI sends at once through shared memory (4 KiB).
constexpr std::size_t kMessageBytes = 4032;
/// Longer blocks travel in several messages: MPI counts are 32-bit, and each message that is
/// through shows that the transfer moves.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

struct Header {
  std::uint64_t sequence = 0;
  std::uint64_t num_bytes = 0;
  std::int32_t root = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
};
constexpr std::size_t kInlineBytes = kMessageBytes - sizeof(Header);

}  // namespace

/// One collective under way.
struct MpiTransport::Exchange {
  const Call& call;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;       ///< [requests] with which rank
  std::vector<char> is_header;  ///< [requests] whether it receives a header
  std::vector<int> completed;   ///< scratch of MPI_Testsome
  std::vector<MPI_Status> statuses;
  std::size_t num_pending = 0;
  std::size_t num_headers = 0;  ///< ranks that have not arrived yet

  MPI_Request* add(int peer, bool header = false) {
    requests.push_back(MPI_REQUEST_NULL);
    peers.push_back(peer);
    is_header.push_back(header ? 1 : 0);
    ++num_pending;
    num_headers += header ? 1 : 0;
    return &requests.back();
  }

  /// Lets go of what is still under way, after a failure.
  void cancel() {
    for (MPI_Request& request : requests) {
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
  }
};

MpiTransport::MpiTransport() : abort_((start_mpi(), std::make_shared<MpiAbort>())) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  mpi_group_opened();
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  rank_ = abort_->rank();
  size_ = abort_->size();
  world_ranks_.resize(static_cast<std::size_t>(size_));
  std::iota(world_ranks_.begin(), world_ranks_.end(), 0);
  outbox_.resize(static_cast<std::size_t>(size_) * kMessageBytes);
  inbox_.resize(outbox_.size());
}

MpiTransport::MpiTransport(MPI_Comm comm, std::shared_ptr<MpiAbort> abort,
                           std::vector<int> world_ranks)
    : comm_(comm), abort_(std::move(abort)), world_ranks_(std::move(world_ranks)) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  size_ = static_cast<int>(world_ranks_.size());
  outbox_.resize(static_cast<std::size_t>(size_) * kMessageBytes);
  inbox_.resize(outbox_.size());
}

MpiTransport::~MpiTransport() = default;

std::unique_ptr<MpiTransport> MpiTransport::split(int color, std::chrono::milliseconds timeout) {
  check_color(color);
  std::vector<int> colors(static_cast<std::size_t>(size_));
  const std::vector<std::span<const std::byte>> send(colors.size(),
                                                     std::as_bytes(std::span(&color, 1)));
  std::vector<std::span<std::byte>> receive;
  for (int& other : colors) {
    receive.push_back(std::as_writable_bytes(std::span(&other, 1)));
  }
  // All are here when this is through, so that the call below does not wait for one that is not.
  exchange({CollectiveKind::kSplit, 0, send, receive, timeout});
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color, rank_, &part), "MPI_Comm_split");
  std::vector<int> world_ranks;
  for (const int rank : ranks_of_color(colors, rank_)) {
    world_ranks.push_back(world_rank(rank));
  }
  return std::unique_ptr<MpiTransport>(new MpiTransport(part, abort_, std::move(world_ranks)));
}

void MpiTransport::close(std::chrono::milliseconds timeout) {
  const std::vector<std::span<const std::byte>> nothing(static_cast<std::size_t>(size_));
  const std::vector<std::span<std::byte>> nowhere(static_cast<std::size_t>(size_));
  exchange({CollectiveKind::kLeave, 0, nothing, nowhere, timeout});
  abort_->close();
  mpi_group_closed();
}

void MpiTransport::exchange(const Call& call) {
  abort_->throw_if_failed();
  Exchange exchange{
      .call = call, .requests = {}, .peers = {}, .is_header = {}, .completed = {}, .statuses = {}};
  try {
    begin(exchange);
    const auto deadline = std::chrono::steady_clock::now() + call.timeout;
    Backoff backoff;
    while (exchange.num_pending > 0) {
      const std::size_t before = exchange.num_pending + exchange.requests.size();
      progress(exchange);
      if (exchange.num_pending == 0) {
        break;
      }
      if (exchange.num_pending + exchange.requests.size() != before) {
        backoff.reset(exchange.num_headers == 0 ? Backoff::kMoving : Backoff::kAbsent);
        continue;
      }
      abort_->throw_if_failed();
      if (std::chrono::steady_clock::now() > deadline) {
        throw_late(exchange);
      }
      backoff.pause();
    }
    ++sequence_;
  } catch (const Error& error) {
    abort_->fail(error);
    exchange.cancel();
    throw;
  }
}

void MpiTransport::begin(Exchange& exchange) {
  const auto me = static_cast<std::size_t>(rank_);
  const std::span<const std::byte> own = exchange.call.send[me];
  COTERIE_CHECK(own.size() == exchange.call.receive[me].size(),
                describe(exchange.call.kind, sequence_), ": rank ", world_rank(rank_), " sends ",
                own.size(), " bytes to itself, but expects ", exchange.call.receive[me].size());
  const std::size_t num_peers = static_cast<std::size_t>(size_) - 1;
  exchange.requests.reserve(4 * num_peers);  // MPI keeps no pointer into it
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    check_mpi(MPI_Irecv(inbox_.data() + static_cast<std::size_t>(from) * kMessageBytes,
                        kMessageBytes, MPI_BYTE, from, kHeaderTag, comm_, exchange.add(from, true)),
              "MPI_Irecv");
  }
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_;
    const std::span<const std::byte> block = exchange.call.send[static_cast<std::size_t>(to)];
    std::byte* message = outbox_.data() + static_cast<std::size_t>(to) * kMessageBytes;
    const Header header{sequence_, block.size(), exchange.call.root, exchange.call.kind};
    std::memcpy(message, &header, sizeof(header));
    const bool is_short = block.size() <= kInlineBytes;
    if (is_short && !block.empty()) {
      std::memcpy(message + sizeof(header), block.data(), block.size());
    }
    const std::size_t length = sizeof(header) + (is_short ? block.size() : 0);
    check_mpi(MPI_Isend(message, static_cast<int>(length), MPI_BYTE, to, kHeaderTag, comm_,
                        exchange.add(to)),
              "MPI_Isend");
    for (std::size_t at = 0; !is_short && at < block.size(); at += kChunkBytes) {
      const std::size_t count = std::min(kChunkBytes, block.size() - at);
      check_mpi(MPI_Isend(block.data() + at, static_cast<int>(count), MPI_BYTE, to, kPayloadTag,
                          comm_, exchange.add(to)),
                "MPI_Isend");
    }
  }
  if (!own.empty()) {
    std::memcpy(exchange.call.receive[me].data(), own.data(), own.size());
  }
}

void MpiTransport::progress(Exchange& exchange) {
  const int num_requests = static_cast<int>(exchange.requests.size());
  exchange.completed.resize(exchange.requests.size());
  exchange.statuses.resize(exchange.requests.size());
  int num_completed = 0;
  const int status = MPI_Testsome(num_requests, exchange.requests.data(), &num_completed,
                                  exchange.completed.data(), exchange.statuses.data());
  if (status == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < num_completed; ++i) {
      check_mpi(exchange.statuses[static_cast<std::size_t>(i)].MPI_ERROR, "MPI_Testsome");
    }
  }
  check_mpi(status, "MPI_Testsome");
  for (int i = 0; i < num_completed; ++i) {
    const auto index = static_cast<std::size_t>(exchange.completed[static_cast<std::size_t>(i)]);
    --exchange.num_pending;
    if (exchange.is_header[index] != 0) {
      --exchange.num_headers;
      int num_bytes = 0;
      MPI_Get_count(&exchange.statuses[static_cast<std::size_t>(i)], MPI_BYTE, &num_bytes);
      accept_header(exchange, exchange.peers[index], num_bytes);
    }
  }
}

void MpiTransport::accept_header(Exchange& exchange, int from, int num_bytes) {
  const std::byte* message = inbox_.data() + static_cast<std::size_t>(from) * kMessageBytes;
  const Call& call = exchange.call;
  Header header;
  COTERIE_CHECK(num_bytes >= static_cast<int>(sizeof(header)), "rank ", world_rank(from),
                " sent a header of ", num_bytes, " bytes");
  std::memcpy(&header, message, sizeof(header));
  COTERIE_CHECK(header.kind == call.kind && header.sequence == sequence_, "rank ",
                world_rank(rank_), " is in ", describe(call.kind, sequence_), ", but rank ",
                world_rank(from), " is in ", describe(header.kind, header.sequence));
  COTERIE_CHECK(header.root == call.root, describe(call.kind, sequence_), ": rank ",
                world_rank(rank_), " names root ", call.root, ", rank ", world_rank(from),
                " names ", header.root);
  const std::span<std::byte> block = call.receive[static_cast<std::size_t>(from)];
  COTERIE_CHECK(header.num_bytes == block.size(), describe(call.kind, sequence_), ": rank ",
                world_rank(from), " sends ", header.num_bytes, " bytes to rank ", world_rank(rank_),
                ", which expects ", block.size());
  if (block.size() <= kInlineBytes) {
    if (!block.empty()) {
      std::memcpy(block.data(), message + sizeof(header), block.size());
    }
    return;
  }
  for (std::size_t at = 0; at < block.size(); at += kChunkBytes) {
    const std::size_t count = std::min(kChunkBytes, block.size() - at);
    check_mpi(MPI_Irecv(block.data() + at, static_cast<int>(count), MPI_BYTE, from, kPayloadTag,
                        comm_, exchange.add(from)),
              "MPI_Irecv");
  }
}

void MpiTransport::throw_late(const Exchange& exchange) const {
  std::vector<int> missing;
  std::vector<int> unfinished;
  for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
    if (exchange.requests[i] != MPI_REQUEST_NULL) {
      (exchange.is_header[i] != 0 ? missing : unfinished).push_back(world_rank(exchange.peers[i]));
    }
  }
  const bool is_missing = !missing.empty();
  fail(ErrorCode::kPeer, describe(exchange.call.kind, sequence_), ": ",
       list_ranks(is_missing ? missing : unfinished),
       is_missing ? " did not arrive within " : " did not finish the transfer within ",
       exchange.call.timeout.count(), " ms");
}

}  // namespace coterie::comm
