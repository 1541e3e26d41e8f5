// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace coterie::comm {

/// Starts MPI in this process with full thread support, once. Throws kUnsupported if the library
/// cannot be called from several threads.
void start_mpi();

/// The processes that MPI sees.
int mpi_rank();
int mpi_size();

/// Throws kPeer with MPI's own words unless `status` is MPI_SUCCESS; `what` names the call.
void check_mpi(int status, const char* what);

/// Counts groups that are open. MPI is shut down at the end of the process if every group was
/// closed in agreement with the other ranks; otherwise it is not, because that could wait for ever
/// on a rank that is gone, and the launcher ends the others.
void mpi_group_opened();
void mpi_group_closed();

}  // namespace coterie::comm
