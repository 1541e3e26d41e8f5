// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/mpi_runtime.hpp"

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "coterie/base/error.hpp"

namespace coterie::comm {

namespace {

std::atomic<int>& open_groups() {
  static std::atomic<int> count = 0;
  return count;
}

void finalize_if_closed() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized == 0 && open_groups() == 0) {
    MPI_Finalize();
  }
}

void start_once() {
  int is_initialized = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_initialized);
  if (is_initialized != 0) {
    MPI_Query_thread(&level);  // the program around us started it, and will end it
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    std::atexit(finalize_if_closed);
  }
  if (level < MPI_THREAD_MULTIPLE) {
    fail(ErrorCode::kUnsupported, "this MPI library gives thread level ", level,
         ", but calls from several threads (level ", MPI_THREAD_MULTIPLE, ") are needed");
  }
}

}  // namespace

void start_mpi() {
  static std::once_flag once;
  std::call_once(once, start_once);
}

int mpi_rank() {
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

int mpi_size() {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

void check_mpi(int status, const char* what) {
  if (status == MPI_SUCCESS) {
    return;
  }
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  fail(ErrorCode::kPeer, what, ": ", text);
}

void mpi_group_opened() {
  ++open_groups();
}

void mpi_group_closed() {
  --open_groups();
}

}  // namespace coterie::comm
