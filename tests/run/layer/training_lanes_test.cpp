// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "tests/run/layer/lane_plans.hpp"
#include "tests/run/layer/training_case.hpp"

namespace coterie::layer {
namespace {

using kernels::Activation;
using kernels::DType;
using schedule::LayerPlan;
using Log = std::array<std::string, schedule::kNumLanes>;

/// FSMoE's movement, each step late by a time that differs from rank to rank and from call to call.
class LateMovement final : public exchange::RowMovement {
 public:
  LateMovement(const exchange::RankGroups& groups, std::uint64_t seed)
      : inner_(groups), between_(seed, 1), inside_(seed, 2) {}
  void to_devices(const exchange::MovedRows& moved, std::span<const std::byte> out,
                  std::span<std::byte> in, comm::Purpose purpose) override {
    inner_.to_devices(moved, out, in, purpose);
  }
  void to_homes(const exchange::MovedRows& moved, std::span<std::byte> in, std::span<std::byte> out,
                comm::Purpose purpose) override {
    inner_.to_homes(moved, in, out, purpose);
  }
  void exchange_out(const exchange::MovedRows& moved, std::span<const std::byte> out,
                    std::span<std::byte> in, comm::Purpose purpose) override {
    wait(between_);
    inner_.exchange_out(moved, out, in, purpose);
  }
  void gather(const exchange::MovedRows& moved, std::span<std::byte> in,
              comm::Purpose purpose) override {
    wait(inside_);
    inner_.gather(moved, in, purpose);
  }
  void scatter(const exchange::MovedRows& moved, std::span<std::byte> in,
               comm::Purpose purpose) override {
    wait(inside_);
    inner_.scatter(moved, in, purpose);
  }
  void exchange_home(const exchange::MovedRows& moved, std::span<std::byte> in,
                     std::span<std::byte> out, comm::Purpose purpose) override {
    wait(between_);
    inner_.exchange_home(moved, in, out, purpose);
  }

 private:
  static void wait(Random& random) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(300)));
  }
  exchange::GroupMovement inner_;
  Random between_;  // each used by one lane
  Random inside_;
};

/// Sends something of its own in the gaps: the sum of a number over the ranks.
class Pieces final : public IdleSlots {
 public:
  explicit Pieces(comm::Communicator& group) : group_(group) {}
  void run_piece(std::int32_t piece) override {
    std::vector<std::int32_t> all(static_cast<std::size_t>(group_.size()));
    group_.all_gather(std::as_bytes(std::span(&piece, 1)), std::as_writable_bytes(std::span(all)),
                      comm::Purpose::kGradient);
    for (const std::int32_t other : all) {
      num_wrong += other == piece ? 0 : 1;
    }
    ++num_pieces;
  }
  std::int32_t num_pieces = 0;
  std::int32_t num_wrong = 0;

 private:
  comm::Communicator& group_;
};

struct RanksRun {
  std::vector<TrainingOutcome> outcomes;
  std::vector<Log> logs;
  std::vector<schedule::Timeline> timelines;
  std::int32_t num_pieces = 0;
};

/// Four ranks: whole experts on all, or (2 x 2) experts cut over the pairs of a node.
RanksRun run_lanes(const TrainingCase& made, const std::optional<LayerPlan>& plan, bool shards,
                   std::uint64_t seed) {
  RanksRun run;
  const std::size_t num_ranks = shards ? 4 : static_cast<std::size_t>(made.num_ranks());
  run.outcomes.resize(num_ranks);
  run.logs.resize(num_ranks);
  run.timelines.resize(num_ranks);
  std::vector<std::int32_t> pieces(num_ranks);
  comm::run_ranks(
      static_cast<int>(num_ranks),
      [&](comm::Communicator& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        const auto expert = world.split(shards ? world.rank() % 2 : 0);
        const auto shard = world.split(shards ? world.rank() / 2 : world.rank());
        const auto dense = world.split(0);
        Pieces slots(*dense);
        profiling::TimelineRecorder recorder("rank", world.rank());
        TrainingRun task;
        task.groups = {expert.get(), shards ? shard.get() : nullptr};
        task.first_token = made.offsets[rank];
        task.end_token = made.offsets[rank + 1];
        task.plan = plan;
        task.layer_run = {&slots, &recorder, 3, &run.logs[rank]};
        task.movement = std::make_shared<LateMovement>(task.groups, seed + rank);
        run.outcomes[rank] = run_training(made, task);
        run.timelines[rank] = recorder.take();
        EXPECT_EQ(slots.num_wrong, 0);
        pieces[rank] = slots.num_pieces;
      },
      std::chrono::seconds(60));
  run.num_pieces = pieces[0];
  return run;
}

void expect_same(const RanksRun& run, const RanksRun& wanted, const std::string& what) {
  for (std::size_t rank = 0; rank < run.outcomes.size(); ++rank) {
    EXPECT_EQ(difference(run.outcomes[rank], wanted.outcomes[rank]), "")
        << what << " on rank " << rank;
    EXPECT_EQ(run.logs[rank], run.logs[0]) << what << " on rank " << rank;
  }
}

/// A case of four ranks whose experts lie on four devices, or on two nodes.
TrainingCase case_of(std::uint64_t seed, DType type, bool shards) {
  TrainingCase made = training_case(seed, 4, type, Activation::kSwiGlu, false, 3);
  if (shards) {
    made.placement = placement::contiguous_placement(made.options.num_experts, 2);
    const auto devices = made.placement.devices_of_expert();
    for (std::size_t pick = 0; pick < made.ids.size(); ++pick) {
      if (made.ids[pick] >= 0) {
        made.devices[pick] = devices[static_cast<std::size_t>(made.ids[pick])][0];
      }
    }
  }
  return made;
}

TEST(TrainingLanes, EveryScheduleGivesTheBitsOfNoSchedule) {
  for (const bool shards : {false, true}) {
    for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
      const TrainingCase made = case_of(11, type, shards);
      const RanksRun wanted = run_lanes(made, {}, shards, 1);
      EXPECT_EQ(wanted.logs[0], Log());
      if (!shards) {
        EXPECT_EQ(difference(joined(wanted.outcomes), run_alone(made)), "");
      }
      for (const schedule::Schedule* each : schedule::schedules()) {
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
          const auto contention = cost::uniform_contention(seed == 1 ? 0.5 : 0.0);
          const LayerPlan plan = schedule::plan_layer(*each, lane_work(seed), contention);
          const RanksRun run = run_lanes(made, plan, shards, 7 * seed);
          expect_same(run, wanted, std::string(each->name));
          EXPECT_EQ(run.num_pieces, std::ssize(plan.backward.moe_gradients)) << each->name;
          EXPECT_NE(run.logs[0], Log());
        }
      }
    }
  }
}

TEST(TrainingLanes, RecomputePutOffWeightsAndOddShapesChangeNoBit) {
  TrainingCase made = case_of(12, DType::kFloat32, true);
  const RanksRun wanted = run_lanes(made, {}, true, 1);
  LayerPlan plan = schedule::plan_layer(schedule::kCoterie, lane_work(1), {});
  plan.backward.shares = {0.13, 0.27, 0.01, 0.59};
  plan.backward.lane_orders = {"E1 E2 W1 E3 E4 W2", "D1 D2 G1 D3 C1 D4 C2 C3 C4 G2",
                               "AG1 AG2 RS1 AG3 RS2 AG4 RS3 RS4"};
  plan.backward.moe_gradients = {1, 2};
  plan.backward.weight_tasks = 2;
  for (const bool recompute : {false, true}) {
    made.options.recompute = recompute;
    for (const std::int64_t most_rows : {16384, 11}) {
      made.options.exchange.max_expanded_rows = most_rows;
      const RanksRun run = run_lanes(made, plan, true, 3);
      expect_same(run, wanted, recompute ? "recompute" : "rows kept");
      EXPECT_NE(run.logs[0][0].find("E2 W1 E3"), std::string::npos) << run.logs[0][0];
      EXPECT_EQ(run.num_pieces, 2);
    }
  }
}

TEST(TrainingLanes, OneProcessForAllDevicesRunsPlansToo) {
  const TrainingCase made = case_of(13, DType::kFloat32, false);
  const TrainingOutcome wanted = run_alone(made);
  for (const schedule::Schedule* each : schedule::schedules()) {
    TrainingRun run;
    run.end_token = made.num_tokens();
    run.plan = schedule::plan_layer(*each, lane_work(2), {});
    EXPECT_EQ(difference(run_training(made, run), wanted), "") << each->name;
  }
}

TEST(TrainingLanes, ATimelineOfTheRealRunHasTheSpansOfTheSimulatedOne) {
  const TrainingCase made = case_of(14, DType::kFloat32, true);
  const schedule::LayerWork work = lane_work(3);
  const LayerPlan plan = schedule::plan_layer(schedule::kFsmoe, work, {});
  const RanksRun run = run_lanes(made, plan, true, 5);
  for (const schedule::Timeline& timeline : run.timelines) {
    std::size_t num_forward = 0;
    for (const schedule::Span& span : timeline.spans) {
      num_forward += span.phase == schedule::Phase::kForward ? 1 : 0;
      EXPECT_EQ(span.layer, 3);
      EXPECT_GE(span.end_s, span.start_s);
    }
    EXPECT_EQ(num_forward, 5 * plan.forward.shares.size());
    const schedule::Timeline simulated =
        schedule::simulate_layer(schedule::kFsmoe, work, plan, cost::Contention());
    EXPECT_GT(simulated.end_s(), 0);
    EXPECT_GT(timeline.end_s(), 0);
  }
}

TEST(TrainingLanes, ARankThatFailsEndsTheOthers) {
  const TrainingCase made = case_of(15, DType::kFloat32, true);
  LayerPlan plan = schedule::plan_layer(schedule::kSequential, lane_work(1), {});
  plan.backward.lane_orders = {"E1", "D1 G1 C1", "AG1 RS1"};
  plan.backward.moe_gradients = {1};
  class Failing final : public IdleSlots {
    void run_piece(std::int32_t) override { fail(ErrorCode::kUnsupported, "no more"); }
  };
  try {
    comm::run_ranks(
        4,
        [&](comm::Communicator& world) {
          const auto rank = static_cast<std::size_t>(world.rank());
          const auto expert = world.split(world.rank() % 2);
          const auto shard = world.split(world.rank() / 2);
          Failing failing;
          TrainingRun task;
          task.groups = {expert.get(), shard.get()};
          task.first_token = made.offsets[rank];
          task.end_token = made.offsets[rank + 1];
          task.plan = plan;
          task.layer_run.slots = world.rank() == 2 ? &failing : nullptr;
          run_training(made, task);
        },
        std::chrono::seconds(20));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
  }
}

}  // namespace
}  // namespace coterie::layer
