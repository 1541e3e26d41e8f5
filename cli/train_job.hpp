// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "cli/console.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/training/training.hpp"

namespace coterie::cli {

/// A training run as the flags describe it.
struct TrainJob {
  training::Recipe recipe;
  training::RecipePaths paths;
  training::RunOptions run;
  int num_threads = 1;
  /// Called on every rank when all steps are done, before the model goes. Collective.
  std::function<void(training::Model&, const training::Workplace&)> on_complete;
};

/// One rank's part of the run; rank 0 speaks. Returns the exit code.
int run_train_job(const TrainJob& job, comm::Communicator& world, Console& console);

/// Prints the predicted memory of a rank.
void print_plan(const TrainJob& job, Console& console);

}  // namespace coterie::cli
