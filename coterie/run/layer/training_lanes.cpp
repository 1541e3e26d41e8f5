// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/layer/phase_steps.hpp"
#include "coterie/run/layer/training_backward.hpp"

// TrainingLayer's phases in the lanes of a plan.
namespace coterie::layer {

using exchange::ArrivedRows;
using exchange::ChunkTrip;
using exchange::Direction;
using exchange::Journey;
using kernels::ConstMatrixView;
using kernels::MatrixView;
using schedule::Phase;
using schedule::PhasePlan;

namespace {

/// Whether the compute lane has tasks of their own for weight gradients.
bool puts_off_weights(const PhasePlan& plan) {
  return plan.lane_orders[static_cast<std::size_t>(schedule::Lane::kCompute)].find('W') !=
         std::string::npos;
}

}  // namespace

void TrainingLayer::set_plan(std::optional<schedule::LayerPlan> plan) {
  if (plan) {
    const StepActions nothing;
    steps_of(plan->forward, nothing, options_.name + ": forward plan");
    steps_of(plan->backward, nothing, options_.name + ": backward plan");
    if (lanes_ == nullptr) {
      lanes_ = std::make_unique<Lanes>();
    }
  }
  plan_ = std::move(plan);
}

void TrainingLayer::carry_out(const PhasePlan& plan, Phase phase, const StepActions& actions) {
  const PhaseSteps steps = steps_of(plan, actions, options_.name);
  lanes_->run(steps.tasks, steps.orders, {run_.recorder, phase, run_.layer, run_.log});
}

void TrainingLayer::begin_trips(const Journey& journey, const ConstMatrixView& at_home,
                                ArrivedRows& arrived, std::deque<ChunkTrip>& trips) const {
  std::vector<ChunkTrip*> all;
  for (std::int64_t chunk = 0; chunk < journey.num_chunks; ++chunk) {
    if (chunk == std::ssize(trips)) {
      trips.emplace_back();
    }
    ChunkTrip& trip = trips[static_cast<std::size_t>(chunk)];
    exchange_->begin_trip(journey, chunk, at_home.columns, at_home.type, trip);
    if (exchange_->has_groups()) {
      trip.execution.threads =
          nullptr;  // the pool is the compute lane's: a link must not wait for it
    }
    all.push_back(&trip);
  }
  exchange_->make_room(journey, all, at_home, arrived);
}

void TrainingLayer::forward_in_lanes(const TrainingBatch& batch,
                                     std::span<const DeviceExperts> experts, const MatrixView& y,
                                     TrainingState& state) {
  const PhasePlan& plan = plan_->forward;
  const Journey journey{*state.lists, Direction::kForward, plan.num_chunks(), nullptr, plan.shares};
  begin_trips(journey, batch.x, state.inputs, trips_);
  const auto trip = [&](std::int32_t chunk) -> ChunkTrip& {
    return trips_[static_cast<std::size_t>(chunk)];
  };
  StepActions actions;
  actions.send_out = [&](std::int32_t chunk) {
    exchange_->send_out(journey, batch.x, state.inputs, trip(chunk));
  };
  actions.gather_in = [&](std::int32_t chunk) {
    exchange_->gather_in(journey, batch.x, state.inputs, trip(chunk));
  };
  actions.experts = [&](std::int32_t chunk) {
    for (std::size_t i = 0; i < state.lists->devices.size(); ++i) {
      forward_device(i, state, experts[i], exchange_->work(i, state.inputs, trip(chunk)));
    }
  };
  actions.scatter_sums = [&](std::int32_t chunk) { exchange_->scatter_sums(journey, trip(chunk)); };
  actions.bring_home = [&](std::int32_t chunk) { exchange_->bring_home(journey, y, trip(chunk)); };
  carry_out(plan, Phase::kForward, actions);
}

void TrainingLayer::backward_in_lanes(const BackwardRun& run) {
  const exchange::TrainingLists& lists = *run.state.lists;
  const PhasePlan& plan = plan_->backward;
  const Journey there{lists, Direction::kRecompute, plan.num_chunks(), nullptr, plan.shares};
  const Journey back{lists, Direction::kBackward, plan.num_chunks(), nullptr, plan.shares};
  const bool fetches = !run.state.keeps_rows;
  if (fetches) {
    begin_trips(there, run.x, run.inputs, retrips_);
  }
  begin_trips(back, run.grad_y, gradients_, trips_);
  num_kept_ = 0;
  const auto trip = [&](std::int32_t chunk) -> ChunkTrip& {
    return trips_[static_cast<std::size_t>(chunk)];
  };
  StepActions actions;
  actions.send_out = [&](std::int32_t chunk) {
    if (fetches) {
      exchange_->send_out(there, run.x, run.inputs, retrips_[static_cast<std::size_t>(chunk)]);
    }
    exchange_->send_out(back, run.grad_y, gradients_, trip(chunk));
  };
  actions.gather_in = [&](std::int32_t chunk) {
    if (fetches) {
      exchange_->gather_in(there, run.x, run.inputs, retrips_[static_cast<std::size_t>(chunk)]);
    }
    exchange_->gather_in(back, run.grad_y, gradients_, trip(chunk));
  };
  const bool puts_off = puts_off_weights(plan);
  actions.experts = [&](std::int32_t chunk) { backward_chunk(run, chunk, &trip(chunk), puts_off); };
  actions.weights = [&](std::int32_t first, std::int32_t end) {
    add_kept_gradients(run, first, end);
  };
  actions.scatter_sums = [&](std::int32_t chunk) { exchange_->scatter_sums(back, trip(chunk)); };
  actions.bring_home = [&](std::int32_t chunk) {
    exchange_->bring_home(back, run.results.grad_x, trip(chunk));
  };
  if (run_.slots != nullptr) {
    actions.gradient = [&](std::int32_t piece) { run_.slots->run_piece(piece); };
  }
  carry_out(plan, Phase::kBackward, actions);
}

}  // namespace coterie::layer
