// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coterie/plan/schedule/layer_plan.hpp"
#include "coterie/plan/schedule/layer_work.hpp"
#include "coterie/plan/schedule/simulator.hpp"

namespace coterie::schedule {

/// How chunk counts are chosen.
enum class Planner : std::uint8_t {
  kEnumerate,   ///< every count, by the exact form or the simulator
  kAlgorithm1,  ///< FSMoE's closed form (section 4.3), blind to contention; ours enumerates still
  kOracle,      ///< brute force: every count, and for ours a fine search over shapes; slow
};
/// "enumerate", "algorithm_1", "oracle".
std::string_view name_of(Planner planner);
/// kBadInput lists the names if there is none such.
Planner planner_of(std::string_view name);

struct PlanOptions {
  std::int32_t most_chunks = 16;
  Planner planner = Planner::kEnumerate;
  bool puts_off_weights = true;      ///< ours only: products for weight gradients run in gaps
  bool pipelines_attention = false;  ///< ours only: may cut the dense part into the chunks too
  double piece_bytes = 30e6;         ///< Lina's fixed gradient pieces

  bool operator==(const PlanOptions&) const = default;
};

/// Evaluates and tunes phase plans of one layer, with buffers of its own. Not thread-safe.
class PhasePlanner {
 public:
  /// Both must outlive it.
  PhasePlanner(const LayerWork& work, Simulator& simulator) : work_(work), simulator_(simulator) {}

  [[nodiscard]] const LayerWork& work() const { return work_; }
  [[nodiscard]] const PhaseWork& work(Phase phase) const {
    return phase == Phase::kForward ? work_.forward : work_.backward;
  }
  [[nodiscard]] bool has_contention() const { return !simulator_.contention().is_free(); }

  /// Simulates a plan and fills in predicted_s.
  void predict(PhasePlan& plan, Phase phase);
  /// Simulates the MoE part alone, its gradients included, and fills in moe_s.
  void predict_moe(PhasePlan& plan, Phase phase);
  /// Predicts both, and fixes the order of every lane as text.
  void fix_orders(PhasePlan& plan, Phase phase);
  /// Equal chunks of every count in 1..most_chunks (or the planner's one), best first.
  std::vector<PhasePlan> enumerate(const PhasePlan& base, Phase phase, const PlanOptions& options);
  /// Bytes of gradients that fit beside the dense part of the backward phase, at most all.
  [[nodiscard]] double dense_window_bytes() const;

 private:
  const LayerWork& work_;
  Simulator& simulator_;
  TaskGraph graph_;
};

}  // namespace coterie::schedule
