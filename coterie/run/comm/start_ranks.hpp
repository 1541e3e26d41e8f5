// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::comm {

/// How a rank that failed on its own account ended.
struct RankFailure {
  int rank = 0;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

/// How a group of ranks ended.
struct RanksEnd {
  int exit_code = 0;
  /// The first rank that failed, if it could still say so.
  std::optional<RankFailure> failure;
  /// What mpirun itself said, such as which rank was killed by a signal.
  std::string launcher_words;
};

struct StartOptions {
  int num_processes = 1;
  /// The program and its arguments, the same on every rank.
  std::vector<std::string> command;
  /// Gets what the ranks write on standard error; nullptr: it is dropped. Standard output is
  /// theirs.
  std::function<void(std::string_view)> on_error_output;
  /// The first SIGINT or SIGTERM that this process gets reaches the ranks as SIGUSR1, so that they
  /// can end in good order; the next one ends them. Otherwise the first one does.
  bool passes_interrupts = false;
};

/// The mpirun command line for ranks of this machine: more ranks than cores are fine, no rank is
/// bound to a core, no rank reads standard input. `can_read_peers`: the kernel lets a process read
/// a sibling's memory (it often does not in containers), so one copy is enough.
std::vector<std::string> mpirun_command(const StartOptions& options, int num_cores,
                                        bool can_read_peers);

/// Runs the command as `num_processes` ranks and waits for them. Cores are shared out: each rank
/// sees OMP_NUM_THREADS = max(1, cores / ranks), unless it is set already. Throws kUnsupported if
/// there is no mpirun.
RanksEnd start_ranks(const StartOptions& options);

/// True if the kernel lets sibling processes read each other's memory.
bool can_read_siblings();

/// Called on a rank that fails: keeps the failure for start_ranks if it is the first and not the
/// echo of another rank's (kPeer 'aborted by rank'). True if start_ranks started this rank, so that
/// it will tell the user and the rank need not.
bool record_rank_failure(const RankFailure& failure) noexcept;

}  // namespace coterie::comm
