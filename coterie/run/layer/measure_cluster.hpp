// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"
#include "coterie/plan/cost/cost.hpp"
#include "coterie/run/layer/synthetic_layer.hpp"

namespace coterie::layer {

struct ClusterMeasureOptions {
  std::string name = "cluster";
  std::string source;  ///< free text for the profile
  /// The largest layer that plans will be made for: sizes up to a quarter more are measured.
  SyntheticShape shape;
  profiling::MeasureOptions measure;
  double pair_s = 0.1;  ///< about how long each of two tasks that slow each other runs
};

/// Samples taken so far, so that a measurement can go on after it was interrupted.
struct MeasureStore {
  Json done = Json::object();                  ///< by name
  std::function<void(const Json& done)> save;  ///< called after each; may be empty
};

/// Measures the links between and inside nodes by the steps of the layer's own movement, the
/// experts' products by its own tasks, how each slows the others, and fits a profile to them. Then
/// predicts a layer that was not measured, by no overlap and by our schedule, runs it, and notes
/// both among the profile's checks: cost::verify_profile judges them. Collective; the result is the
/// same on every rank. `store` must be too. Attention is not measured: it is taken for a product.
cost::ClusterProfile measure_cluster(comm::Communicator& world, const profiling::Nodes& nodes,
                                     const ClusterMeasureOptions& options, MeasureStore& store,
                                     const kernels::Execution& execution = {},
                                     Progress& progress = NoProgress::instance());

/// Seconds of the MoE part of each phase of one forward and backward of `layer` by `plan`, on the
/// slowest rank (collective).
struct PhaseTimes {
  double forward_s = 0;
  double backward_s = 0;

  [[nodiscard]] double sum_s() const { return forward_s + backward_s; }
};
PhaseTimes time_phases(comm::Communicator& world, SyntheticLayer& layer,
                       const schedule::LayerPlan& plan, schedule::Timeline* timeline = nullptr);

}  // namespace coterie::layer
