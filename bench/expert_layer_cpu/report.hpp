// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::bench {

/// Median and quartiles of a set of samples.
struct Spread {
  double low = 0.0;
  double median = 0.0;
  double high = 0.0;
  double best = 0.0;
};
Spread spread_of(std::vector<double> samples);

/// One shape, type and number of rows an expert. Ratios are taken within one round, against the
/// ceiling and the at::linear measured beside it.
struct Case {
  std::string shape;
  std::string type;
  std::string pass = "forward";  ///< or "training": forward and backward
  std::int64_t rows_per_expert = 0;
  int rounds = 0;
  double difference = 0.0;     ///< to the reference back end
  double at_difference = 0.0;  ///< of at::linear to ours
  Spread time_ms;
  Spread gflops;
  Spread of_peak;       ///< share of the machine's peak
  Spread of_bandwidth;  ///< bytes of weights a second as a share of the read bandwidth
  Spread over_at;       ///< time of at::linear / our time
};

struct Report {
  kernels::Backend backend = kernels::Backend::kAutomatic;
  int num_threads = 1;
  double fp32_gflops = 0.0, bf16_gflops = 0.0, read_gbs = 0.0;  ///< best seen
  std::vector<Case> cases;
};

/// Table for people.
std::string as_markdown(const Report& report);

/// Writes NAME.{json,md} into a folder.
void write_report(const Report& report, const std::filesystem::path& folder,
                  const std::string& name);

}  // namespace coterie::bench
