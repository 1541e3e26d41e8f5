// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/mpi_abort.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "coterie/run/comm/mpi_runtime.hpp"

namespace coterie::comm {

namespace {

constexpr int kAbortTag = 3;
constexpr std::chrono::milliseconds kAbortLimit{500};

}  // namespace

/// What a rank that gives up tells the others.
struct MpiAbort::Note {
  std::int32_t rank = 0;
  std::uint32_t length = 0;
  std::array<char, 2040> text{};
};

MpiAbort::MpiAbort() : rank_(mpi_rank()), size_(mpi_size()), incoming_(std::make_unique<Note>()) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Irecv(incoming_.get(), sizeof(Note), MPI_BYTE, MPI_ANY_SOURCE, kAbortTag, comm_,
                      &request_),
            "MPI_Irecv");
}

MpiAbort::~MpiAbort() {
  if (!is_closed_) {
    // The library may still write here, now that the ranks have not parted in agreement.
    static_cast<void>(incoming_.release());
  }
}

void MpiAbort::close() {
  check_mpi(MPI_Cancel(&request_), "MPI_Cancel");
  check_mpi(MPI_Wait(&request_, MPI_STATUS_IGNORE), "MPI_Wait");
  is_closed_ = true;
}

void MpiAbort::throw_if_failed() {
  const std::scoped_lock lock(mutex_);
  if (!has_failed_ && request_ != MPI_REQUEST_NULL) {
    int is_there = 0;
    check_mpi(MPI_Test(&request_, &is_there, MPI_STATUS_IGNORE), "MPI_Test");
    if (is_there != 0) {
      failure_ = Error(ErrorCode::kPeer,
                       join_message("aborted by rank ", incoming_->rank, ": ",
                                    std::string(incoming_->text.data(), incoming_->length)));
      has_failed_ = true;
    }
  }
  if (has_failed_) {
    throw Error(*failure_);
  }
}

void MpiAbort::fail(const Error& error) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) {
      return;  // the others know, or told us
    }
    failure_ = error;
    has_failed_ = true;
  }
  send(error.what());
}

void MpiAbort::abort(const std::string& message) noexcept {
  fail(Error(ErrorCode::kPeer, join_message("aborted by rank ", rank_, ": ", message)));
}

void MpiAbort::send(const std::string& message) noexcept {
  // Not freed: the library may read it until the process ends.
  auto* note = new Note;
  note->rank = rank_;
  note->length = static_cast<std::uint32_t>(std::min(message.size(), note->text.size()));
  std::copy_n(message.begin(), note->length, note->text.begin());
  std::vector<MPI_Request> requests(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      MPI_Isend(note, sizeof(Note), MPI_BYTE, r, kAbortTag, comm_,
                &requests[static_cast<std::size_t>(r)]);
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kAbortLimit;
  int is_done = 0;
  while (is_done == 0 && std::chrono::steady_clock::now() < deadline) {
    MPI_Testall(size_, requests.data(), &is_done, MPI_STATUSES_IGNORE);
    if (is_done == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace coterie::comm
