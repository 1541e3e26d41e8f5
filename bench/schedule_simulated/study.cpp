// SPDX-License-Identifier: Apache-2.0
#include "bench/schedule_simulated/study.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>

namespace coterie::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Largest relative difference of exact form and simulator on this layer, forward, r = 1..16.
double formula_error(const schedule::LayerWork& work) {
  schedule::LayerWork moe = work;
  moe.forward.attention.size = moe.forward.dense_gather.size = moe.forward.dense_scatter.size = 0;
  schedule::Simulator simulator;
  schedule::PhasePlanner planner(moe, simulator);
  double worst = 0;
  for (int chunks = 1; chunks <= 16; ++chunks) {
    const auto times = schedule::chunk_times(moe.forward, chunks);
    for (const bool one_stream : {false, true}) {
      schedule::PhasePlan plan;
      plan.shares = schedule::equal_shares(chunks);
      plan.one_stream = one_stream;
      planner.predict(plan, schedule::Phase::kForward);
      const double exact_s = one_stream ? schedule::exact_one_stream(times, chunks, 0)
                                        : schedule::exact_two_streams(times, chunks, 0);
      worst = std::max(worst, std::abs(exact_s / plan.predicted_s - 1));
    }
  }
  return worst;
}

}  // namespace

Spread spread_of(std::vector<double> ratios) {
  std::ranges::sort(ratios);
  const auto at = [&](double share) {
    return ratios[static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1) + 0.5)];
  };
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  return {sum / static_cast<double>(ratios.size()), at(0.05), at(0.95), ratios.front()};
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  std::ranges::transform(a, b, result.begin(), std::divides<>());
  return result;
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const schedule::Schedule* each : schedule::schedules()) {
    all.push_back({std::string(each->label), each, {}});
  }
  schedule::PlanOptions listed;
  listed.puts_off_weights = false;
  all.push_back({"ours, weight products in place", &schedule::kCoterie, listed});
  schedule::PlanOptions more;
  more.pipelines_attention = true;
  all.push_back({"ours + attention pipelined", &schedule::kCoterie, more});
  return all;
}

Study run_study(const Testbed& testbed, double contention) {
  Study study;
  study.testbed = testbed.name;
  study.contention = contention;
  const cost::Contention links = cost::uniform_contention(contention);
  schedule::PlanOptions closed;
  closed.planner = schedule::Planner::kAlgorithm1;
  const std::vector<GridLayer> grid = grid_of(testbed);
  const std::vector<Variant> all = variants();
  for (const GridLayer& layer : grid) {
    const schedule::LayerWork work = work_of(testbed, layer);
    study.worst_formula_error = std::max(study.worst_formula_error, formula_error(work));
    for (const Variant& variant : all) {
      const std::clock_t start = std::clock();  // processor time: other work shares the machine
      const auto plan = schedule::plan_layer(*variant.schedule, work, links, variant.options);
      if (variant.name == "ours") {
        study.plan_us.push_back(1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      }
      study.layer_s[variant.name].push_back(plan.predicted_s());
      study.moe_s[variant.name].push_back(plan.moe_s());
      study.forward_s[variant.name].push_back(plan.forward.moe_s);
    }
    const double closed_s =
        schedule::plan_layer(schedule::kFsmoe, work, links, closed).predicted_s();
    const double regret = closed_s / study.layer_s["FSMoE"].back() - 1;
    study.algorithm_1_regret += regret / static_cast<double>(grid.size());
    study.algorithm_1_worst = std::max(study.algorithm_1_worst, regret);
  }
  return study;
}

LargeRun run_large() {
  constexpr std::size_t kLayers = 96;
  const Testbed testbed = testbed_b();
  const std::vector<GridLayer> grid = grid_of(testbed);
  const cost::Contention links = cost::uniform_contention(0.3);
  std::vector<schedule::LayerWork> works;
  for (std::size_t i = 0; i < kLayers; ++i) {  // every layer another one
    works.push_back(work_of(testbed, grid[i * grid.size() / kLayers]));
  }
  LargeRun large;
  auto start = Clock::now();
  std::vector<schedule::LayerPlan> plans;
  for (const schedule::LayerWork& work : works) {
    plans.push_back(schedule::plan_layer(schedule::kCoterie, work, links));
  }
  large.plan_s = seconds_since(start);
  start = Clock::now();
  schedule::ClusterOptions options;
  options.num_nodes = 1024;
  options.devices_per_node = 4;
  options.load_spread = 0.1;
  options.jitter = 0.02;
  const auto run = schedule::simulate_cluster(schedule::kCoterie, works, plans, links, options);
  large.simulate_s = seconds_since(start);
  large.num_tasks = run.num_tasks;
  large.waiting = run.waiting();
  return large;
}

}  // namespace coterie::bench
