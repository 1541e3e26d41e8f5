// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "cli/console.hpp"
#include "coterie/run/comm/comm.hpp"

namespace CLI {
class App;
}

namespace coterie::cli {

/// How a command that runs on several ranks is started.
struct LaunchFlags {
  int num_processes = 0;  ///< --nproc; 0: not given
  std::string engine = "automatic";
  double timeout_s = 300;
  int num_threads = 0;  ///< --threads of each rank; 0: its share of the cores
  /// Ranks end by themselves when interrupted: SIGINT reaches them as SIGUSR1.
  bool passes_interrupts = false;
};

/// Adds --nproc, --engine, --timeout-s and --threads.
void add_launch_flags(CLI::App& command, LaunchFlags& flags);

/// Threads for the computing of one rank.
int threads_of_rank(const LaunchFlags& flags, const comm::RankEnvironment& environment);

/// Runs `work` on every rank of the group. Where no launcher has started ranks and more than one is
/// wanted, this process starts them (the same command line again, through mpirun), shows what they
/// write, and ends as they do; in them this function is reached again. `work` returns the exit code
/// of a run without errors. Only rank 0 speaks through the console.
void run_on_ranks(const LaunchFlags& flags, Console& console,
                  const std::function<int(comm::Communicator&)>& work);

}  // namespace coterie::cli
