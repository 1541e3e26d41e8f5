// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/advice.hpp"

#include <algorithm>

namespace coterie::schedule {
namespace {

constexpr double kFaster = 0.5;         ///< of beta: twice the bandwidth
constexpr double kFewerReplicas = 0.8;  ///< of replicas
constexpr double kMoreTokens = 2;

cost::CostModel faster(const cost::CostModel& model) {
  return model.scaled(1, kFaster);
}

cost::ClusterProfile with_faster_network(cost::ClusterProfile profile) {
  for (cost::Engine& engine : profile.engines) {
    engine.exchange = faster(engine.exchange);
    engine.all_reduce = faster(engine.all_reduce);
  }
  return profile;
}

cost::ClusterProfile with_faster_links(cost::ClusterProfile profile) {
  for (cost::Engine& engine : profile.engines) {
    engine.local_exchange = faster(engine.local_exchange);
    engine.all_gather = faster(engine.all_gather);
    engine.reduce_scatter = faster(engine.reduce_scatter);
  }
  return profile;
}

cost::ClusterProfile with_faster_products(cost::ClusterProfile profile) {
  profile.products = faster(profile.products);
  profile.attention = faster(profile.attention);
  return profile;
}

template <typename Change>
std::vector<RoutingLoad> changed(std::span<const RoutingLoad> loads, Change change) {
  std::vector<RoutingLoad> result(loads.begin(), loads.end());
  std::ranges::for_each(result, change);
  return result;
}

}  // namespace

double planned_step_s(const Schedule& schedule, const BlockShape& shape,
                      std::span<const RoutingLoad> loads, const cost::ClusterProfile& profile,
                      std::string_view engine, const PlanOptions& options) {
  double step_s = 0;
  for (const RoutingLoad& load : loads) {
    step_s += plan_layer(schedule, work_of(shape, load, profile, engine),
                         profile.engine(engine).contention, options)
                  .predicted_s();
  }
  return step_s;
}

std::vector<Advice> advise(const Schedule& schedule, const BlockShape& shape,
                           std::span<const RoutingLoad> loads, const cost::ClusterProfile& profile,
                           std::string_view engine, const PlanOptions& options) {
  const auto step_s = [&](const BlockShape& s, std::span<const RoutingLoad> l,
                          const cost::ClusterProfile& p) {
    return planned_step_s(schedule, s, l, p, engine, options);
  };
  const double now_s = step_s(shape, loads, profile);
  std::vector<Advice> all;
  const auto add = [&](std::string_view name, std::string what, double time_s) {
    all.push_back({name, std::move(what), time_s, time_s > 0 ? now_s / time_s : 1});
  };
  if (profile.num_nodes > 1) {
    add("inter_node_bandwidth", "twice the bandwidth between nodes",
        step_s(shape, loads, with_faster_network(profile)));
  }
  if (profile.devices_per_node > 1) {
    add("intra_node_bandwidth", "twice the bandwidth inside nodes",
        step_s(shape, loads, with_faster_links(profile)));
  }
  add("compute", "products twice as fast", step_s(shape, loads, with_faster_products(profile)));
  add("replicas", "a fifth fewer replicas (better placement, pruning)",
      step_s(shape,
             changed(loads,
                     [](RoutingLoad& load) {
                       load.node_replicas = std::max(1.0, kFewerReplicas * load.node_replicas);
                       load.device_replicas = std::max(1.0, kFewerReplicas * load.device_replicas);
                     }),
             profile));
  add("balance", "even loads and rows (load cap, redundant experts)",
      step_s(shape,
             changed(loads,
                     [](RoutingLoad& load) {
                       load.node_imbalance = load.device_imbalance = 1;
                       load.load_imbalance = 1;
                     }),
             profile));
  BlockShape larger = shape;
  larger.tokens *= kMoreTokens;
  add("batch", "twice the tokens a device (time for the same tokens)",
      step_s(larger, loads, profile) / kMoreTokens);
  std::ranges::stable_sort(all, std::greater<>(), &Advice::speed_up);
  return all;
}

}  // namespace coterie::schedule
