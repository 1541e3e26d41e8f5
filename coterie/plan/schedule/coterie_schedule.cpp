// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "coterie/plan/schedule/schedules.hpp"

namespace coterie::schedule {
namespace {

/// Simulations that the refinement of one plan may cost; the oracle has no limit.
constexpr int kRefinements = 64;
/// Counts tried after the best one before a rising time is believed.
constexpr int kPatience = 2;
/// A refinement must gain this share to be taken.
constexpr double kGain = 1e-4;
/// A base's weight_tasks that stands for one task a chunk.
constexpr std::int32_t kOneAChunk = -1;
/// Plans that are refined.
constexpr std::size_t kRefined = 2;

/// The search for one phase: every base with every chunk count, then the shapes of the best.
class Search {
 public:
  Search(PhasePlanner& planner, Phase phase, const PlanOptions& options)
      : planner_(planner), phase_(phase), options_(options) {}

  /// Equal chunks of 1, 2, ... until the time has risen for a while.
  void try_counts(const PhasePlan& base) {
    PhasePlan plan = base;
    double least_s = 0;
    PhasePlan best;
    for (std::int32_t chunks = 1, since = 0; chunks <= options_.most_chunks; ++chunks) {
      plan.shares.assign(static_cast<std::size_t>(chunks), 1.0 / chunks);
      plan.weight_tasks = base.weight_tasks == kOneAChunk ? chunks : base.weight_tasks;
      planner_.predict(plan, phase_);
      if (chunks == 1 || plan.predicted_s < least_s) {
        least_s = plan.predicted_s;
        best = plan;
        since = 0;
      } else if (++since > kPatience && !is_oracle()) {
        break;
      }
      if (is_oracle()) {
        found_.push_back(plan);
      }
    }
    if (!is_oracle()) {
      found_.push_back(std::move(best));
    }
  }

  /// Refines the most promising; all plans, best first.
  std::vector<PhasePlan> finish() {
    std::ranges::stable_sort(found_, {}, &PhasePlan::predicted_s);
    const std::size_t count = is_oracle() ? found_.size() : std::min(kRefined, found_.size());
    for (std::size_t i = 0; i < count; ++i) {
      refine(found_[i]);
    }
    std::ranges::stable_sort(found_, {}, &PhasePlan::predicted_s);
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool is_oracle() const { return options_.planner == Planner::kOracle; }

  /// Makes single chunks larger and smaller, first by much, then by little, while it helps.
  void refine(PhasePlan& plan) {
    int left = is_oracle() ? 100000 : kRefinements;
    PhasePlan tried = plan;
    for (double step = 0.5; step > 0.04 && plan.num_chunks() > 1; step /= 2) {
      for (bool any = true; any;) {
        any = false;
        for (std::size_t i = 0; i < plan.shares.size(); ++i) {
          for (const double factor : {1 / (1 + step), 1 + step}) {
            if (left-- <= 0) {
              return;
            }
            tried.shares = plan.shares;
            tried.shares[i] *= factor;
            const double sum = std::accumulate(tried.shares.begin(), tried.shares.end(), 0.0);
            std::ranges::for_each(tried.shares, [sum](double& share) { share /= sum; });
            planner_.predict(tried, phase_);
            if (tried.predicted_s < plan.predicted_s * (1 - kGain)) {
              std::swap(plan, tried);
              any = true;
            }
          }
        }
      }
    }
  }

  PhasePlanner& planner_;
  Phase phase_;
  const PlanOptions& options_;
  std::vector<PhasePlan> found_;
};

/// FSMoE's phase: the dense window first, the rest of the gradients behind the last D.
PhasePlan fsmoe_base(const PhasePlanner& planner, Phase phase) {
  PhasePlan base;
  if (phase == Phase::kBackward) {
    base.dense_gradient = planner.dense_window_bytes();
    const double rest = planner.work().gradient.size - base.dense_gradient;
    if (rest > 0) {
      base.moe_gradients = {rest};
    }
  }
  return base;
}

std::vector<PhasePlan> plan(PhasePlanner& planner, Phase phase, const PlanOptions& options) {
  const PhasePlan base = fsmoe_base(planner, phase);
  std::vector<PhasePlan> bases = {base};  // its presence makes ours never slower than FSMoE
  const auto add = [&](Order order, std::int32_t weight_tasks, bool one_stream, bool pipelines) {
    PhasePlan plan = base;
    plan.order = order;
    plan.weight_tasks = weight_tasks;
    plan.one_stream = one_stream;
    plan.pipelines_attention = pipelines;
    bases.push_back(plan);
  };
  const bool puts_off = options.puts_off_weights && planner.work(phase).weights.size > 0;
  add(Order::kLaterStageFirst, 0, false, false);
  if (puts_off) {
    add(Order::kDispatchFirst, 1, false, false);
    add(Order::kLaterStageFirst, 1, false, false);
    add(Order::kLaterStageFirst, kOneAChunk, false, false);
  }
  if (planner.has_contention()) {  // links that slow each other may do better in turns
    add(Order::kDispatchFirst, 0, true, false);
    if (puts_off) {
      add(Order::kDispatchFirst, 1, true, false);
    }
  }
  if (options.pipelines_attention) {
    add(Order::kDispatchFirst, puts_off ? 1 : 0, false, true);
    add(Order::kLaterStageFirst, puts_off ? kOneAChunk : 0, false, true);
  }
  Search search(planner, phase, options);
  for (const PhasePlan& each : bases) {
    search.try_counts(each);
  }
  return search.finish();
}

}  // namespace

const Schedule kCoterie = {"coterie", "ours", nullptr, plan};

}  // namespace coterie::schedule
