// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/plan/schedule/task_graph.hpp"

namespace coterie::schedule {

/// Which of several ready tasks of a lane runs first.
enum class Order : std::uint8_t {
  kDispatchFirst,    ///< all D, then gradients, then all C; all AG, then all RS (FSMoE, Fig. 3d)
  kLaterStageFirst,  ///< C before gradients before D; RS before AG: chunks leave as soon as they
                     ///< can
  kGradientLast,     ///< as kDispatchFirst, gradients only while no exchange is ready (Lina)
};
/// "dispatch_first", "later_stage_first", "gradient_last".
std::string_view name_of(Order order);

/// How one phase of one layer is carried out.
struct PhasePlan {
  std::vector<double> shares = {1};  ///< of the tokens, one a chunk; positive, sum 1
  bool one_stream = false;           ///< exchanges inside and between nodes never run together
  Order order = Order::kDispatchFirst;
  /// Bytes of dense gradients sent beside the MoE part, one number a piece; beside the dense part;
  /// and after everything, beside nothing. Their sum is what the phase sends.
  std::vector<double> moe_gradients;
  double dense_gradient = 0;
  double last_gradient = 0;
  /// Backward: products for weight gradients are put off into so many tasks in the gaps of the
  /// compute lane; 0: each chunk's follow its E at once.
  std::int32_t weight_tasks = 0;
  bool pipelines_attention = false;  ///< the dense part is cut into the same chunks
  /// The order of each lane's tasks, "D1 D2 C1 ...": the same on every rank. Empty until
  /// LayerPlanner fixed it.
  std::array<std::string, kNumLanes> lane_orders;
  double moe_s = 0;        ///< predicted seconds of the MoE part alone, its gradients included
  double predicted_s = 0;  ///< predicted seconds of the phase

  [[nodiscard]] std::int32_t num_chunks() const { return static_cast<std::int32_t>(shares.size()); }
  bool operator==(const PhasePlan&) const = default;
};

/// How one layer is carried out, forward and backward.
struct LayerPlan {
  std::string schedule;
  PhasePlan forward;
  PhasePlan backward;

  [[nodiscard]] double predicted_s() const { return forward.predicted_s + backward.predicted_s; }
  [[nodiscard]] double moe_s() const { return forward.moe_s + backward.moe_s; }
  bool operator==(const LayerPlan&) const = default;
};

/// Chunks of equal size.
std::vector<double> equal_shares(std::int32_t num_chunks);

Json to_json(const PhasePlan& plan);
Json to_json(const LayerPlan& plan);
/// Reads what to_json wrote (inside a plan file without the schedule's name); kBadInput names the
/// place and the broken law.
LayerPlan layer_plan_from(const JsonReader& reader);

}  // namespace coterie::schedule
