// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/planner.hpp"

#include <algorithm>
#include <array>

#include "coterie/base/error.hpp"
#include "coterie/plan/schedule/exact_form.hpp"
#include "coterie/plan/schedule/phase_graph.hpp"

namespace coterie::schedule {
namespace {

constexpr std::array<std::string_view, 3> kPlannerNames = {"enumerate", "algorithm_1", "oracle"};

}  // namespace

std::string_view name_of(Planner planner) {
  return kPlannerNames.at(static_cast<std::size_t>(planner));
}

Planner planner_of(std::string_view name) {
  const auto found = std::ranges::find(kPlannerNames, name);
  COTERIE_REQUIRE(found != kPlannerNames.end(), "no planner is called \"", name,
                  "\"; there are enumerate, algorithm_1, oracle");
  return static_cast<Planner>(found - kPlannerNames.begin());
}

void PhasePlanner::predict(PhasePlan& plan, Phase phase) {
  build_phase(work_, plan, phase, graph_);
  plan.predicted_s = simulator_.run(graph_);
}

void PhasePlanner::predict_moe(PhasePlan& plan, Phase phase) {
  PhasePlan alone = plan;
  alone.dense_gradient = 0;
  alone.last_gradient = 0;
  LayerWork moe = work_;
  for (PhaseWork* part : {&moe.forward, &moe.backward}) {
    part->attention.size = part->dense_gather.size = part->dense_scatter.size = 0;
  }
  build_phase(moe, alone, phase, graph_);
  plan.moe_s = simulator_.run(graph_);
}

void PhasePlanner::fix_orders(PhasePlan& plan, Phase phase) {
  predict_moe(plan, phase);
  predict(plan, phase);
  const auto orders = simulator_.lane_orders(graph_);
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    plan.lane_orders[lane] = order_text(graph_, orders[lane]);
  }
}

std::vector<PhasePlan> PhasePlanner::enumerate(const PhasePlan& base, Phase phase,
                                               const PlanOptions& options) {
  COTERIE_REQUIRE(options.most_chunks >= 1 && options.most_chunks <= 1024, "most chunks ",
                  options.most_chunks, ": must be 1 to 1024");
  int first = 1;
  int last = options.most_chunks;
  if (options.planner == Planner::kAlgorithm1) {
    double gradient_s = 0;
    for (const double bytes : base.moe_gradients) {
      gradient_s += work_.gradient.calls * work_.gradient.model.time_s(bytes);
    }
    first = last = algorithm_1(work(phase), gradient_s, options.most_chunks);
  }
  std::vector<PhasePlan> plans;
  for (int chunks = first; chunks <= last; ++chunks) {
    PhasePlan plan = base;
    plan.shares = equal_shares(chunks);
    predict(plan, phase);
    plans.push_back(std::move(plan));
  }
  std::ranges::stable_sort(plans, {}, &PhasePlan::predicted_s);
  return plans;
}

double PhasePlanner::dense_window_bytes() const {
  const double calls_s = work_.backward.dense_s() / std::max(1.0, work_.gradient.calls);
  return std::min(work_.gradient.size, work_.gradient.model.size_in(calls_s));
}

}  // namespace coterie::schedule
