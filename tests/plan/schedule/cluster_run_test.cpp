// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/cluster_run.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "tests/plan/schedule/random_work.hpp"

namespace coterie::schedule {
namespace {

struct Model {
  std::vector<LayerWork> works;
  std::vector<LayerPlan> plans;
};

Model random_model(std::uint64_t seed, int layers, const Schedule& schedule,
                   const cost::Contention& contention) {
  Random random(seed);
  Model model;
  for (int i = 0; i < layers; ++i) {
    model.works.push_back(random_layer(random));
    model.plans.push_back(plan_layer(schedule, model.works.back(), contention));
  }
  return model;
}

TEST(SimulateCluster, DevicesThatAreAlikeTakeWhatThePlansSay) {
  for (const Schedule* schedule : schedules()) {
    const cost::Contention contention = cost::uniform_contention(0.3, 0.1);
    const Model model = random_model(1, 5, *schedule, contention);
    ClusterOptions options;
    options.num_nodes = 3;
    options.devices_per_node = 4;
    const ClusterRun run =
        simulate_cluster(*schedule, model.works, model.plans, contention, options);
    EXPECT_NEAR(run.step_s, run.even_s, 1e-9 * run.even_s) << schedule->name;
    EXPECT_GT(run.forward_s, 0);
    EXPECT_LT(run.waiting(), 1e-9);
    EXPECT_GT(run.num_tasks, 5 * 2 * 12);
  }
}

TEST(SimulateCluster, UnevenDevicesWaitForEachOtherAndMoreDevicesWaitLonger) {
  const Model model = random_model(2, 4, kCoterie, {});
  ClusterOptions options;
  options.devices_per_node = 4;
  options.load_spread = 0.3;
  double before = 0;
  for (const std::int32_t nodes : {1, 8, 64}) {
    options.num_nodes = nodes;
    const ClusterRun run = simulate_cluster(kCoterie, model.works, model.plans, {}, options);
    EXPECT_GT(run.step_s, run.even_s);
    EXPECT_GT(run.step_s, before * 0.95);
    before = run.step_s;
  }
  options.jitter = 0.1;
  const ClusterRun jittered = simulate_cluster(kCoterie, model.works, model.plans, {}, options);
  EXPECT_GT(jittered.step_s, before);
  const ClusterRun again = simulate_cluster(kCoterie, model.works, model.plans, {}, options);
  EXPECT_EQ(again.step_s, jittered.step_s);  // same seed, same figures
}

TEST(SimulateCluster, KeepsTheDrawnLayer) {
  const Model model = random_model(3, 3, kFsmoe, {});
  ClusterOptions options;
  options.num_nodes = 2;
  options.devices_per_node = 2;
  options.drawn_layer = 1;
  options.drawn_devices = 2;
  const ClusterRun run = simulate_cluster(kFsmoe, model.works, model.plans, {}, options);
  EXPECT_NEAR(run.drawn.end_s(), model.plans[1].forward.predicted_s, 1e-9);
  for (const Span& span : run.drawn.spans) {
    EXPECT_TRUE(span.device == 0 || span.device == 2);
    EXPECT_EQ(span.layer, 1);
  }
}

TEST(SimulateCluster, RefusesWhatCannotBe) {
  const Model model = random_model(4, 2, kFsmoe, {});
  ClusterOptions options;
  const std::span<const LayerPlan> one(model.plans.data(), 1);
  EXPECT_THROW(simulate_cluster(kFsmoe, model.works, one, {}, options), Error);
  options.num_nodes = 0;
  EXPECT_THROW(simulate_cluster(kFsmoe, model.works, model.plans, {}, options), Error);
  options.num_nodes = 1;
  options.jitter = -1;
  EXPECT_THROW(simulate_cluster(kFsmoe, model.works, model.plans, {}, options), Error);
}

}  // namespace
}  // namespace coterie::schedule
