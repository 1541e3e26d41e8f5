// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coterie/run/comm/communicator.hpp"
#include "coterie/run/comm/fake.hpp"
#include "coterie/run/comm/rank_environment.hpp"

namespace coterie::comm {

/// How ranks reach each other.
struct GroupOptions {
  /// "automatic" (single for one rank, otherwise mpi), or a name out of `engine_names`.
  std::string engine = "automatic";
  RankEnvironment environment;
  /// Ranks of the fake, which lie in this process; others take theirs from `environment`.
  int num_fake_ranks = 1;
  /// How long a rank waits for another one.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// Called on a rank whose function throws, before the others are told.
  std::function<void(int rank, const std::exception&)> on_failure;
};

/// The engines of this build: "single", "fake", and "mpi" where it was built with libtorch.
std::vector<std::string> engine_names();

/// Runs `function` with this process's rank of the group (under "fake" with every rank, each in a
/// thread). If it throws, the other ranks end with 'aborted by rank r', and it is thrown on.
/// Throws kUnsupported if the engine cannot serve the environment, saying what to do instead.
void run_in_group(const GroupOptions& options, const std::function<void(Communicator&)>& function);

}  // namespace coterie::comm
