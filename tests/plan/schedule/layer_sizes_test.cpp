// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/layer_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/plan/schedule/advice.hpp"
#include "tests/plan/cost/sample_profile.hpp"

namespace coterie::schedule {
namespace {

/// 4 experts on 4 devices in 2 nodes: tokens {0,1} x3, {0,2} x1, {3} x2.
routing::ExpertSets sets() {
  const std::vector<std::uint16_t> ids = {
      0, 1, 0, 1, 0, 1, 0, 2, 3, routing::kNoExpert, 3, routing::kNoExpert};
  return routing::make_expert_sets(ids, 2, 4);
}

void identity(std::span<const std::uint16_t> experts, std::span<std::int32_t> devices) {
  std::ranges::copy(experts, devices.begin());
}

BlockShape shape() {
  BlockShape block;
  block.hidden = 1024;
  block.intermediate = 512;
  block.tokens = 2048;
  block.sequence_length = 512;
  return block;
}

TEST(MeasureLoad, CountsNodesAndDevicesApart) {
  const RoutingLoad load = measure_load(sets(), 4, 2, identity);
  EXPECT_DOUBLE_EQ(load.picks, 10.0 / 6);
  EXPECT_DOUBLE_EQ(load.device_replicas, 10.0 / 6);
  EXPECT_DOUBLE_EQ(load.node_replicas, 7.0 / 6);       // only {0,2} crosses
  EXPECT_DOUBLE_EQ(load.node_imbalance, 4.0 / 3.5);    // node 0: 4 rows, node 1: 3
  EXPECT_DOUBLE_EQ(load.device_imbalance, 4.0 / 2.5);  // device 0: 4 of 10 rows
  EXPECT_DOUBLE_EQ(load.load_imbalance, 4.0 / 2.5);
  EXPECT_THROW(measure_load(sets(), 4, 3, identity), Error);
  EXPECT_THROW(measure_load(routing::ExpertSets(), 4, 2, identity), Error);
}

TEST(RandomLoad, FollowsTheHypergeometricExpectation) {
  const RoutingLoad load = random_load(64, 8, 16, 4);
  EXPECT_NEAR(load.node_replicas, routing::random_replicas(8, std::vector(4, 16)), 1e-12);
  EXPECT_NEAR(load.device_replicas, routing::random_replicas(8, std::vector(16, 4)), 1e-12);
  EXPECT_EQ(random_load(64, 8, 4096, 512).device_replicas, 8);  // an expert a device at most
  EXPECT_THROW(random_load(4, 8, 2, 1), Error);
}

TEST(WorkOf, FollowsTheFormulasOfBothLayouts) {
  const cost::ClusterProfile profile = cost::sample_profile();
  RoutingLoad load{8, 2, 4, 1.1, 1.2, 1.5};
  const double row = 1024.0 * 2048;
  const LayerWork whole = work_of(shape(), load, profile);
  EXPECT_DOUBLE_EQ(whole.forward.dispatch.size, 2 * 1.1 * row * 2);
  EXPECT_DOUBLE_EQ(whole.forward.combine.size, 2 * 1.1 * row * 4);
  EXPECT_DOUBLE_EQ(whole.forward.gather.size, 4 * 1.2 * row * 2);
  EXPECT_DOUBLE_EQ(whole.forward.scatter.size, 4 * 1.2 * row * 4);
  EXPECT_DOUBLE_EQ(whole.forward.experts.size, 2 * 8 * 1.5 * row * 512);
  EXPECT_EQ(whole.forward.experts.calls, 3);
  EXPECT_EQ(whole.forward.weights.size, 0);
  EXPECT_EQ(whole.backward.weights, whole.forward.experts);
  EXPECT_EQ(whole.forward.gather.model, profile.engine().local_exchange);
  BlockShape sharded = shape();
  sharded.shards_experts = true;
  const LayerWork cut = work_of(sharded, load, profile);
  EXPECT_DOUBLE_EQ(cut.forward.gather.size, 8 * 2 * 1.1 * row * 2);
  EXPECT_EQ(cut.forward.gather.model, profile.engine().all_gather);
  EXPECT_DOUBLE_EQ(cut.forward.experts.size, whole.forward.experts.size);
  EXPECT_DOUBLE_EQ(cut.gradient.size, whole.gradient.size / 8);
  EXPECT_GT(cut.forward.dense_gather.size, 0);
}

TEST(WorkOf, OneNodeHasNoNetworkAndOneDeviceNoLinks) {
  cost::ClusterProfile profile = cost::sample_profile();
  profile.num_nodes = 1;
  const LayerWork node = work_of(shape(), {}, profile);
  EXPECT_EQ(node.forward.dispatch.time_s(), 0);
  EXPECT_EQ(node.gradient.time_s(), 0);
  EXPECT_GT(node.forward.gather.time_s(), 0);
  profile.devices_per_node = 1;
  EXPECT_EQ(work_of(shape(), {}, profile).forward.gather.time_s(), 0);
}

TEST(WorkOf, RefusesShapesWithoutSize) {
  for (double BlockShape::*member : {&BlockShape::hidden, &BlockShape::intermediate,
                                     &BlockShape::tokens, &BlockShape::sum_bytes}) {
    BlockShape bad = shape();
    bad.*member = 0;
    EXPECT_THROW(work_of(bad, {}, cost::sample_profile()), Error);
  }
}

TEST(LowerBound, NoScheduleBeatsIt) {
  const cost::ClusterProfile profile = cost::sample_profile();
  const LayerWork work = work_of(shape(), {8, 2, 4, 1.1, 1.2, 1.5}, profile);
  const LowerBound bound = lower_bound_of(work);
  EXPECT_GT(bound.time_s(), 0);
  EXPECT_FALSE(bound.bound_by().empty());
  EXPECT_EQ(bound.time_s(), std::max({bound.compute_s, bound.inter_node_s, bound.intra_node_s}));
}

TEST(Advise, RanksWhatWouldHelp) {
  cost::ClusterProfile profile = cost::sample_profile();
  const std::vector<RoutingLoad> loads(3, RoutingLoad{8, 2, 4, 1.1, 1.2, 1.5});
  profile.engines[0].exchange = cost::CostModel(3e-5, 1 / 1e9);  // a slow network
  const auto slow = advise(kCoterie, shape(), loads, profile);
  ASSERT_EQ(slow.size(), 6U);
  EXPECT_EQ(slow.front().name, "inter_node_bandwidth");
  EXPECT_GT(slow.front().speed_up, 1.5);
  for (std::size_t i = 1; i < slow.size(); ++i) {
    EXPECT_LE(slow[i].speed_up, slow[i - 1].speed_up);
    EXPECT_GE(slow[i].speed_up, 0.99);
  }
  profile.products = profile.attention = cost::CostModel(2e-5, 1 / 1e12);  // slow arithmetic
  profile.engines[0].exchange = cost::CostModel(3e-6, 1 / 400e9);
  EXPECT_EQ(advise(kCoterie, shape(), loads, profile).front().name, "compute");
  profile.num_nodes = 1;
  for (const Advice& advice : advise(kCoterie, shape(), loads, profile)) {
    EXPECT_NE(advice.name, "inter_node_bandwidth");
  }
}

}  // namespace
}  // namespace coterie::schedule
