// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/schedule_simulated/testbeds.hpp"

namespace coterie::bench {

/// Mean and tails of paired ratios over the grid.
struct Spread {
  double mean = 0;
  double p5 = 0;
  double p95 = 0;
  double least = 0;
};
Spread spread_of(std::vector<double> ratios);

/// Ours in three strengths; the others once.
struct Variant {
  std::string name;
  const schedule::Schedule* schedule;
  schedule::PlanOptions options;
};
std::vector<Variant> variants();

/// One testbed at one contention: seconds of each variant on each layer of the grid.
struct Study {
  std::string testbed;
  double contention = 0;
  std::map<std::string, std::vector<double>> layer_s;    ///< forward and backward, whole layer
  std::map<std::string, std::vector<double>> moe_s;      ///< the MoE part, both phases
  std::map<std::string, std::vector<double>> forward_s;  ///< the MoE part, forward
  std::vector<double> plan_us;                           ///< processor time to plan a layer (ours)
  double worst_formula_error = 0;  ///< exact form against the simulator, relative
  double algorithm_1_regret = 0;   ///< mean of Algorithm 1's FSMoE over enumeration's, minus 1
  double algorithm_1_worst = 0;
};
Study run_study(const Testbed& testbed, double contention);

/// Ratios a / b layer by layer.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

/// Seconds that planning and simulating a 96-layer model on 4,096 devices takes.
struct LargeRun {
  double plan_s = 0;
  double simulate_s = 0;
  std::int64_t num_tasks = 0;
  double waiting = 0;
};
LargeRun run_large();

/// The tables as Markdown; `passed` turns false where a bar is missed.
std::string report(const std::vector<Study>& studies, const LargeRun& large, bool& passed);

}  // namespace coterie::bench
