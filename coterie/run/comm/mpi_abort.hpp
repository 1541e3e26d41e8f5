// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "coterie/base/error.hpp"

namespace coterie::comm {

/// The first failure among the ranks of MPI_COMM_WORLD: each rank tells its own to all others, on
/// messages of their own that every waiting rank looks for. A group and the parts cut from it share
/// one. Thread-safe.
class MpiAbort {
 public:
  /// Collective over all ranks.
  MpiAbort();
  ~MpiAbort();
  MpiAbort(const MpiAbort&) = delete;
  MpiAbort& operator=(const MpiAbort&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Throws the failure if there is one, here or at another rank.
  void throw_if_failed();
  /// The first failure stays, and is told. Returns when that is out, after half a second at most.
  void fail(const Error& error) noexcept;
  /// See Communicator::abort.
  void abort(const std::string& message) noexcept;
  /// All ranks have agreed to part: nobody will fail any more.
  void close();

 private:
  struct Note;
  void send(const std::string& message) noexcept;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool is_closed_ = false;
  std::mutex mutex_;  ///< of the note, its request and failure_
  std::unique_ptr<Note> incoming_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::optional<Error> failure_;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace coterie::comm
