// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/layer/training_layer.hpp"
#include "coterie/run/profiling/profiling.hpp"

namespace coterie::layer {

struct SyntheticShape {
  std::int64_t hidden = 256;
  std::int64_t intermediate = 512;  ///< of a whole expert
  std::int32_t num_experts = 8;
  std::int32_t top_k = 2;
  std::int64_t tokens = 512;  ///< of a rank
  std::uint64_t seed = 1;

  bool operator==(const SyntheticShape&) const = default;
};

/// A layer with random fp32 weights, tokens and routing (distinct experts, all equally likely):
/// what measurements run, so that they time the code that training runs. In FSMoE's layout: a
/// placement's device is a node, experts are cut over its ranks. Not thread-safe.
class SyntheticLayer {
 public:
  /// On the ranks of the nodes, which must outlive it. kBadInput if the shape does not divide.
  SyntheticLayer(const SyntheticShape& shape, const profiling::Nodes& nodes,
                 const kernels::Execution& execution = {});
  /// What one rank of such nodes computes, without any exchange.
  SyntheticLayer(const SyntheticShape& shape, int num_nodes, int devices_per_node,
                 const kernels::Execution& execution = {});

  void forward();
  /// Of the last forward.
  void backward();

  [[nodiscard]] TrainingLayer& layer() { return *layer_; }
  /// The layer as a planner sees it; its dense part is attention of the same width.
  [[nodiscard]] schedule::BlockShape block() const;
  /// The load of the real routing, of all ranks.
  [[nodiscard]] const schedule::RoutingLoad& load() const { return load_; }
  /// Of y and all gradients: equal bits, equal number.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  SyntheticLayer(const SyntheticShape& shape, const exchange::RankGroups& groups, int num_nodes,
                 int devices_per_node, int rank, const kernels::Execution& execution);
  kernels::MatrixView add(std::int64_t rows, std::int64_t columns, double scale);

  SyntheticShape shape_;
  int devices_per_node_;
  Random random_;
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
  std::vector<std::int32_t> ids_;
  schedule::RoutingLoad load_;
  kernels::MatrixView x_, y_, grad_y_, grad_x_, weights_, grad_weights_;
  std::vector<kernels::MatrixView> results_;
  DeviceExperts experts_;
  DeviceGradients gradients_;
  std::unique_ptr<TrainingLayer> layer_;
  std::unique_ptr<TrainingState> state_;
};

/// A plan of the MoE part with everything in turn and weight gradients as a task of their own, so
/// that each step can be timed by itself.
schedule::LayerPlan step_by_step_plan();

}  // namespace coterie::layer
