// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cli/console.hpp"
#include "cli/train_job.hpp"

namespace coterie::cli {

/// How drift is measured and when experts are placed anew.
struct DriftFlags {
  std::int64_t profile_tokens = 20000;  ///< of each file; 0: no report
  double horizon_tokens = 1e9;
};

/// Runs the model before and after tuning over the held-out data (the training data if there is
/// none), says how routing has drifted, and writes OUT/drift.json and the placement and policy that
/// fit the tuned model. For one process.
void report_drift(const TrainJob& job, const DriftFlags& flags, Console& console);

}  // namespace coterie::cli
