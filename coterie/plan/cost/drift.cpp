// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/drift.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::cost {
namespace {

/// Mean absolute difference of two independent normal numbers is 1.128 standard deviations.
constexpr double kDifferencePerDeviation = 1.128;
/// Slack and threshold in standard deviations of a step: a false alarm in some ten thousand steps.
constexpr double kSlackDeviations = 0.5;
constexpr double kThresholdDeviations = 10;
/// Steps that the noise is averaged over.
constexpr std::int64_t kNoiseSteps = 50;

}  // namespace

Json to_json(const DriftDecision& decision) {
  Json refits = Json::array();
  for (const Refit& refit : decision.refits) {
    refits.push_back({{"operation", refit.operation}, {"factor", refit.factor}});
  }
  return {{"step", decision.step}, {"refits", std::move(refits)}};
}

DriftDetector::DriftDetector(std::int32_t num_operations, DriftOptions options)
    : options_(options), watches_(static_cast<std::size_t>(std::max(0, num_operations))) {
  COTERIE_REQUIRE(num_operations > 0, "drift detector: ", num_operations, " operations");
  COTERIE_REQUIRE(options.smoothing > 0 && options.smoothing <= 1, "drift detector: smoothing ",
                  options.smoothing, " is not in (0, 1]");
  COTERIE_REQUIRE(
      options.slack >= 0 && options.threshold > 0 && options.largest_step > options.slack,
      "drift detector: slack ", options.slack, ", threshold ", options.threshold, ", largest step ",
      options.largest_step);
}

void DriftDetector::observe(std::int32_t operation, double predicted_s, double measured_s) {
  COTERIE_REQUIRE(operation >= 0 && static_cast<std::size_t>(operation) < watches_.size(),
                  "drift detector: no operation ", operation);
  COTERIE_REQUIRE(
      std::isfinite(predicted_s) && predicted_s > 0 && std::isfinite(measured_s) && measured_s > 0,
      "drift detector: operation ", operation, ": predicted ", predicted_s, " s, measured ",
      measured_s, " s; both must be positive");
  Watch& watch = watches_[static_cast<std::size_t>(operation)];
  watch.step_sum += std::log(measured_s / predicted_s);
  ++watch.step_count;
}

void DriftDetector::judge(Watch& watch, double ratio) {
  ++watch.num_steps;
  if (watch.num_steps == 1) {
    watch.level = ratio;
  } else {
    const double jump = std::min(std::abs(ratio - watch.last), 4 * options_.largest_step);
    watch.noise += (jump - watch.noise) /
                   static_cast<double>(std::min<std::int64_t>(watch.num_steps - 1, kNoiseSteps));
    watch.level += options_.smoothing * (ratio - watch.level);
  }
  watch.last = ratio;
  if (watch.num_steps <= options_.warm_up_steps) {
    return;
  }
  const double deviation = watch.noise / kDifferencePerDeviation;
  const double slack = std::max(options_.slack, kSlackDeviations * deviation);
  const double threshold = std::max(options_.threshold, kThresholdDeviations * deviation);
  const double most = std::max(options_.largest_step, 2 * slack);
  const double step = std::clamp(ratio, -most, most);
  watch.above = std::max(0.0, watch.above + step - slack);
  watch.below = std::max(0.0, watch.below - step - slack);
  if (watch.above == 0 && watch.below == 0) {
    watch.since_alarm = 0;
    watch.num_since_alarm = 0;
  } else {
    watch.since_alarm += ratio;
    ++watch.num_since_alarm;
  }
  watch.alarm = watch.above > threshold || watch.below > threshold;
}

DriftDecision DriftDetector::end_step() {
  for (Watch& watch : watches_) {
    if (watch.step_count > 0) {
      judge(watch, watch.step_sum / static_cast<double>(watch.step_count));
    }
    watch.step_sum = 0;
    watch.step_count = 0;
  }
  DriftDecision decision{step_, {}};
  const bool rested = last_refit_ < 0 || step_ - last_refit_ >= options_.cool_down_steps;
  const bool alarm = std::ranges::any_of(watches_, [&](const Watch& watch) {
    return watch.alarm && std::abs(watch.level) >= options_.smallest_change;
  });
  if (rested && alarm) {
    for (std::size_t i = 0; i < watches_.size(); ++i) {
      const Watch& watch = watches_[i];
      // The mean since the cumulative sum began is the new level, without the old one mixed in.
      const double level = watch.num_since_alarm > 0
                               ? watch.since_alarm / static_cast<double>(watch.num_since_alarm)
                               : 0;
      const bool moved = watch.above > 0 || watch.below > 0;
      if (moved && std::abs(level) >= options_.smallest_change &&
          (watch.alarm || std::abs(watch.level) >= options_.smallest_change)) {
        decision.refits.push_back({static_cast<std::int32_t>(i), std::exp(level)});
      }
    }
  }
  ++step_;
  return decision;
}

void DriftDetector::accept(const DriftDecision& decision) {
  if (decision.refits.empty()) {
    return;
  }
  for (const Refit& refit : decision.refits) {
    Watch& watch = watches_.at(static_cast<std::size_t>(refit.operation));
    Watch fresh;  // what is known of the noise stays true
    fresh.noise = watch.noise;
    fresh.num_steps = watch.num_steps;
    fresh.last = watch.last - std::log(refit.factor);
    watch = fresh;
  }
  last_refit_ = decision.step;
}

double DriftDetector::level(std::int32_t operation) const {
  return std::exp(watches_.at(static_cast<std::size_t>(operation)).level);
}

bool worth_replanning(double old_s, double new_s, const DriftOptions& options) {
  return new_s < old_s * (1 - options.smallest_gain);
}

}  // namespace coterie::cost
