// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::cost {

/// When durations count as changed. Ratios are natural logarithms of measured over predicted.
struct DriftOptions {
  double smoothing = 0.2;         ///< weight of the newest step in the moving averages
  double slack = 0.05;            ///< drift that is never noticed (log ratio)
  double threshold = 1.0;         ///< sum of drifts beyond the slack that raises the alarm
  double largest_step = 0.25;     ///< one step counts at most this much: no single hiccup re-plans
  double smallest_change = 0.08;  ///< a level must have moved this far (log ratio) to re-fit
  std::int32_t warm_up_steps = 10;    ///< first steps that are not judged
  std::int32_t cool_down_steps = 20;  ///< steps between two re-fits: the hysteresis in time
  double smallest_gain = 0.02;        ///< a new plan must be predicted to be so much faster

  bool operator==(const DriftOptions&) const = default;
};

/// A model whose durations have changed level.
struct Refit {
  std::int32_t operation = 0;  ///< as given to observe()
  double factor = 1;           ///< measured over predicted: what to scale the model by

  bool operator==(const Refit&) const = default;
};

/// What to do at a step boundary. Rank 0 decides and broadcasts this.
struct DriftDecision {
  std::int64_t step = 0;
  std::vector<Refit> refits;  ///< ascending operation; empty: go on as before

  bool operator==(const DriftDecision&) const = default;
};
Json to_json(const DriftDecision& decision);

/// Watches durations of real chunks and says at step boundaries which cost models no longer hold.
/// Pure logic: no clock, no threads. For each operation the step's mean log ratio feeds a two-sided
/// cumulative-sum test (Page 1954) around the level that the models were last fitted to; slack and
/// threshold widen with the noise that the operation shows. An alarm alone does not re-fit: the
/// smoothed level must have moved too, and the last re-fit must be some steps ago. All operations
/// that moved are re-fitted together. Not thread-safe.
class DriftDetector {
 public:
  explicit DriftDetector(std::int32_t num_operations, DriftOptions options = {});

  /// One chunk of `operation` took `measured_s` where the models said `predicted_s` (of the models
  /// as first fitted, or as re-fitted after accept()). kBadInput for times that are not positive.
  void observe(std::int32_t operation, double predicted_s, double measured_s);
  /// Ends a step.
  DriftDecision end_step();
  /// The models were scaled by the decision's factors, and predictions follow from now on.
  void accept(const DriftDecision& decision);

  /// Smoothed measured / predicted of an operation.
  [[nodiscard]] double level(std::int32_t operation) const;
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] const DriftOptions& options() const { return options_; }

 private:
  struct Watch {
    double step_sum = 0;
    std::int64_t step_count = 0;
    std::int64_t num_steps = 0;
    double level = 0;  ///< moving average of the log ratio
    double last = 0;   ///< of the step before
    double noise = 0;  ///< moving average of |difference of steps|
    double above = 0;  ///< cumulative sums
    double below = 0;
    bool alarm = false;
    double since_alarm = 0;  ///< sum and count of steps since the alarm's sum began
    std::int64_t num_since_alarm = 0;
  };
  void judge(Watch& watch, double ratio);

  DriftOptions options_;
  std::vector<Watch> watches_;
  std::int64_t step_ = 0;
  std::int64_t last_refit_ = -1;
};

/// The hysteresis of the plan itself: true if a plan predicted to take `new_s` is worth leaving one
/// that now takes `old_s`.
bool worth_replanning(double old_s, double new_s, const DriftOptions& options = {});

}  // namespace coterie::cost
