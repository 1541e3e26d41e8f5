// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>

#include "coterie/base/error.hpp"
#include "coterie/plan/schedule/exact_form.hpp"
#include "coterie/plan/schedule/gradient_partition.hpp"
#include "coterie/plan/schedule/phase_graph.hpp"
#include "coterie/plan/schedule/simulator.hpp"

namespace coterie::schedule {
namespace {

/// The MoE part of a layer's backward phase with an all-reduce behind the last D.
class MoePart {
 public:
  MoePart(const LayerWork& work, const cost::Contention& contention, std::int32_t most_chunks)
      : work_(work), simulator_(contention), most_chunks_(most_chunks) {
    PhaseWork& phase = work_.backward;
    phase.attention.size = phase.dense_gather.size = phase.dense_scatter.size = 0;
    work_.gradient = {cost::CostModel(0, 1), 1};  // one second a byte: sizes are seconds
    is_exact_ = contention.is_free() && phase.shared_experts.size <= 0;
  }

  double time_s(double gradient_s) {
    double least_s = std::numeric_limits<double>::infinity();
    for (std::int32_t chunks = 1; chunks <= most_chunks_; ++chunks) {
      least_s = std::min(least_s, time_s(gradient_s, chunks));
    }
    return least_s;
  }

 private:
  double time_s(double gradient_s, std::int32_t chunks) {
    if (is_exact_) {
      return exact_two_streams(chunk_times(work_.backward, chunks), chunks, gradient_s);
    }
    PhasePlan plan;
    plan.shares = equal_shares(chunks);
    if (gradient_s > 0) {
      plan.moe_gradients = {gradient_s};
    }
    build_phase(work_, plan, Phase::kBackward, graph_);
    return simulator_.run(graph_);
  }

  LayerWork work_;
  Simulator simulator_;
  TaskGraph graph_;
  std::int32_t most_chunks_;
  bool is_exact_ = false;
};

}  // namespace

std::vector<GradientLayer> gradient_layers_of(std::span<const LayerWork> works,
                                              const cost::Contention& contention,
                                              std::int32_t most_chunks) {
  COTERIE_REQUIRE(most_chunks >= 1, "gradient layers: at most ", most_chunks, " chunks");
  std::vector<GradientLayer> layers;
  for (std::size_t i = works.size(); i-- > 0;) {
    const LayerWork& work = works[i];
    const auto part = std::make_shared<MoePart>(work, contention, most_chunks);
    layers.push_back({work.gradient.size, work.backward.dense_s(),
                      [part](double gradient_s) { return part->time_s(gradient_s); }});
  }
  return layers;
}

}  // namespace coterie::schedule
