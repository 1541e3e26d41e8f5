// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coterie/plan/cost/cost.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/profiling/clock.hpp"

namespace coterie::profiling {

struct MeasureOptions {
  std::int32_t warm_ups = 3;  ///< runs of each size that are not timed
  std::int32_t repeats = 9;   ///< timed runs of each size; the median counts
};

/// Times `run(size)` at every size on all ranks of `group` (collective). Before each run the ranks
/// meet; a run lasts as long as on the slowest rank, for everybody waits for that one. The result
/// is the same on every rank. kBadInput if a size or the number of repeats is not positive.
std::vector<cost::Sample> measure_operation(comm::Communicator& group,
                                            std::span<const double> sizes,
                                            const std::function<void(double size)>& run,
                                            const MeasureOptions& options = {},
                                            const Clock& clock = steady_clock());

/// Times two tasks alone and at the same time (`a` in a thread of its own), on all ranks of `group`
/// together: medians of the slowest rank (collective). If both make collectives, they need groups
/// of their own.
cost::PairMeasurement measure_pair(comm::Communicator& group, const std::function<void()>& a,
                                   const std::function<void()>& b,
                                   const MeasureOptions& options = {},
                                   const Clock& clock = steady_clock());

/// The largest of all ranks' values, on every rank (collective).
double largest_of(comm::Communicator& group, double value);

/// kBadInput without values.
double median_of(std::vector<double> values);

/// All-to-all of `sizes` bytes a rank, in equal parts to every rank of `group` (collective).
std::vector<cost::Sample> measure_exchange(comm::Communicator& group, std::span<const double> sizes,
                                           const MeasureOptions& options = {},
                                           const Clock& clock = steady_clock());

/// All-gather whose output has `sizes` bytes on every rank (collective).
std::vector<cost::Sample> measure_all_gather(comm::Communicator& group,
                                             std::span<const double> sizes,
                                             const MeasureOptions& options = {},
                                             const Clock& clock = steady_clock());

}  // namespace coterie::profiling
