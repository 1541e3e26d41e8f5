// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/measure_cluster.hpp"

#include <gtest/gtest.h>

#include <mutex>

#include "coterie/base/error.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::layer {
namespace {

SyntheticShape small_shape() {
  SyntheticShape shape;
  shape.hidden = 16;
  shape.intermediate = 24;
  shape.num_experts = 4;
  shape.tokens = 192;
  return shape;
}

TEST(SyntheticLayer, HasTheSameBitsByEveryPlan) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    const profiling::Nodes nodes = profiling::find_nodes(world, 2);
    EXPECT_EQ(nodes.num_nodes, 2);
    SyntheticLayer layer(small_shape(), nodes);
    layer.forward();
    layer.backward();
    const std::uint64_t wanted = layer.digest();
    cost::ClusterProfile profile;
    profile.num_nodes = 2;
    profile.devices_per_node = 2;
    profile.products = profile.attention = cost::CostModel(1e-5, 1e-9);
    const cost::CostModel link(1e-5, 1e-8);
    profile.engines = {{"fake", link, link, link, link, link, {}}};
    for (const schedule::Schedule* each : schedule::schedules()) {
      const auto work = schedule::work_of(layer.block(), layer.load(), profile);
      schedule::Timeline timeline;
      const PhaseTimes times =
          time_phases(world, layer, schedule::plan_layer(*each, work, {}), &timeline);
      EXPECT_EQ(layer.digest(), wanted) << each->name;
      EXPECT_GT(times.forward_s, 0);
      EXPECT_GE(timeline.spans.size(), 10U);
    }
  });
}

TEST(MeasureCluster, GivesAProfileAndGoesOnWhereItStopped) {
  std::mutex mutex;
  std::vector<std::string> profiles;
  comm::run_ranks(4, [&](comm::Communicator& world) {
    const profiling::Nodes nodes = profiling::find_nodes(world, 2);
    ClusterMeasureOptions options;
    options.shape = small_shape();
    options.measure = {1, 3};
    options.pair_s = 0.002;
    MeasureStore store;
    int num_saved = 0;
    store.save = [&](const Json&) { ++num_saved; };
    const cost::ClusterProfile profile = measure_cluster(world, nodes, options, store);
    EXPECT_EQ(num_saved, 9);
    EXPECT_EQ(cost::profile_from(to_json(profile), "profile"), profile);
    EXPECT_GT(profile.engines.front().exchange.quality().num_points, 4);
    EXPECT_EQ(profile.products.quality().num_points, 7);
    ASSERT_EQ(profile.checks.size(), 2U);
    {
      const std::lock_guard lock(mutex);
      cost::ClusterProfile fitted = profile;
      fitted.checks.clear();
      profiles.push_back(cost::format_profile(fitted));
    }
    // Interrupted behind the links: they are not measured again.
    MeasureStore partial;
    for (const char* name : {"exchange", "all_gather", "reduce_scatter", "local_exchange"}) {
      partial.done[name] = store.done.at(name);
    }
    partial.save = [&](const Json&) { --num_saved; };
    const cost::ClusterProfile again = measure_cluster(world, nodes, options, partial);
    EXPECT_EQ(num_saved, 9 - 5);
    EXPECT_EQ(again.engines.front().exchange, profile.engines.front().exchange);
  });
  for (const std::string& profile : profiles) {
    EXPECT_EQ(profile, profiles.front());
  }
}

TEST(FindNodes, ByHostName) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    const profiling::Nodes nodes =
        profiling::find_nodes(world, 0, world.rank() < 2 ? "here" : "there");
    EXPECT_EQ(nodes.num_nodes, 2);
    EXPECT_EQ(nodes.place, world.rank() % 2);
    EXPECT_EQ(nodes.between->size(), 2);
    EXPECT_THROW(profiling::find_nodes(world, 0, world.rank() < 3 ? "here" : "there"), Error);
    EXPECT_THROW(profiling::find_nodes(world, 3), Error);
  });
}

}  // namespace
}  // namespace coterie::layer
