// SPDX-License-Identifier: Apache-2.0
/// A rank that trains a small layer by every schedule, in lanes over real MPI, and holds each
/// result against that of no schedule, bit for bit. Prints "same" on rank 0, or throws.
#include <cstdio>
#include <exception>
#include <optional>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/comm.hpp"
#include "tests/run/layer/lane_plans.hpp"
#include "tests/run/layer/training_case.hpp"

namespace {

using coterie::layer::TrainingCase;
using coterie::layer::TrainingOutcome;

/// Two nodes, experts cut over the two ranks of a node.
TrainingCase sharded_case() {
  TrainingCase made = coterie::layer::training_case(
      21, 4, coterie::kernels::DType::kFloat32, coterie::kernels::Activation::kSwiGlu, false, 8);
  made.placement = coterie::placement::contiguous_placement(made.options.num_experts, 2);
  const auto devices = made.placement.devices_of_expert();
  for (std::size_t pick = 0; pick < made.ids.size(); ++pick) {
    if (made.ids[pick] >= 0) {
      made.devices[pick] = devices[static_cast<std::size_t>(made.ids[pick])][0];
    }
  }
  return made;
}

void run(coterie::comm::Communicator& world) {
  const TrainingCase made = sharded_case();
  const auto expert = world.split(world.rank() % 2);
  const auto shard = world.split(world.rank() / 2);
  const auto rank = static_cast<std::size_t>(world.rank());
  const auto train = [&](const std::optional<coterie::schedule::LayerPlan>& plan) {
    coterie::layer::TrainingRun task;
    task.groups = {expert.get(), shard.get()};
    task.first_token = made.offsets[rank];
    task.end_token = made.offsets[rank + 1];
    task.plan = plan;
    return coterie::layer::run_training(made, task);
  };
  const TrainingOutcome wanted = train({});
  for (const coterie::schedule::Schedule* each : coterie::schedule::schedules()) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const auto plan = coterie::schedule::plan_layer(*each, coterie::layer::lane_work(seed), {});
      const std::string differs = difference(train(plan), wanted);
      COTERIE_CHECK(differs.empty(), each->name, ", plan ", seed, ": ", differs, " differs");
    }
  }
  world.barrier();
  if (rank == 0) {
    std::puts("same");
  }
}

}  // namespace

int main() {
  try {
    coterie::comm::GroupOptions options;
    options.environment = coterie::comm::read_rank_environment();
    options.engine = "mpi";
    options.timeout = std::chrono::seconds(60);
    run_in_group(options, run);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
