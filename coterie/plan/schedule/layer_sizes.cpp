// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/layer_sizes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

/// Expected number of groups that hold one of top_k distinct random experts.
double expected_groups(std::int32_t num_experts, std::int32_t top_k, std::int32_t num_groups) {
  return num_groups >= num_experts
             ? top_k
             : routing::random_replicas(top_k, routing::even_device_sizes(num_experts, num_groups));
}

void check_shape(const BlockShape& shape) {
  const std::array<std::pair<const char*, double>, 9> needed = {
      {{"hidden", shape.hidden},
       {"intermediate", shape.intermediate},
       {"num_matrices", shape.num_matrices},
       {"kv_share", shape.kv_share},
       {"tokens", shape.tokens},
       {"sequence_length", shape.sequence_length},
       {"activation_bytes", shape.activation_bytes},
       {"sum_bytes", shape.sum_bytes},
       {"gradient_bytes", shape.gradient_bytes}}};
  for (const auto& [name, value] : needed) {
    COTERIE_REQUIRE(std::isfinite(value) && value > 0, "block shape: ", name, " is ", value,
                    "; it must be positive");
  }
  COTERIE_REQUIRE(shape.shared_intermediate >= 0, "block shape: shared_intermediate is ",
                  shape.shared_intermediate);
}

/// Floating-point operations of attention, projections included, for the tokens of a device.
double attention_work(const BlockShape& shape) {
  const double projections = shape.hidden * shape.hidden * (2 + 2 * shape.kv_share);
  const double scores = 2 * shape.sequence_length * shape.hidden;
  return 2 * shape.tokens * (projections + scores);
}

PhaseWork phase_of(const BlockShape& shape, const RoutingLoad& load,
                   const cost::ClusterProfile& profile, const cost::Engine& engine) {
  const double n = profile.devices_per_node;
  const double row = shape.hidden * shape.tokens;  // numbers of a device's tokens
  const double node_rows = load.node_replicas * load.node_imbalance * row;
  const double device_rows = load.device_replicas * load.device_imbalance * row;
  const bool is_sharded = shape.shards_experts;
  PhaseWork work;
  if (profile.num_nodes > 1) {
    work.dispatch = {engine.exchange, node_rows * shape.activation_bytes};
    work.combine = {engine.exchange, node_rows * shape.sum_bytes};
  }
  if (profile.devices_per_node > 1) {
    const double rows = is_sharded ? node_rows * n : device_rows;
    work.gather = {is_sharded ? engine.all_gather : engine.local_exchange,
                   rows * shape.activation_bytes};
    work.scatter = {is_sharded ? engine.reduce_scatter : engine.local_exchange,
                    rows * shape.sum_bytes};
    if (is_sharded) {  // attention is cut over the node as well, tokens over its devices
      work.dense_gather = {engine.all_gather, row * n * shape.activation_bytes};
      work.dense_scatter = {engine.reduce_scatter, row * n * shape.activation_bytes};
    }
  }
  // Sharded: all rows of the node, an n-th of each expert. Both are picks x T x H a device.
  const double product =
      2 * load.picks * load.load_imbalance * shape.tokens * shape.hidden * shape.intermediate;
  work.experts = {profile.products, product, shape.num_matrices};
  work.shared_experts = {profile.products,
                         2 * shape.tokens * shape.hidden * shape.shared_intermediate,
                         shape.num_matrices};
  work.attention = {profile.attention, attention_work(shape)};
  return work;
}

}  // namespace

Json to_json(const RoutingLoad& load) {
  return {{"picks", load.picks},
          {"node_replicas", load.node_replicas},
          {"device_replicas", load.device_replicas},
          {"node_imbalance", load.node_imbalance},
          {"device_imbalance", load.device_imbalance},
          {"load_imbalance", load.load_imbalance}};
}

RoutingLoad measure_load(const routing::ExpertSets& sets, std::int32_t num_devices,
                         std::int32_t num_nodes, const routing::DeviceChooser& chooser) {
  COTERIE_REQUIRE(num_nodes >= 1 && num_devices >= 1 && num_devices % num_nodes == 0,
                  "routing load: ", num_devices, " devices do not divide into ", num_nodes,
                  " nodes");
  const routing::ReplicaStats devices = routing::count_replicas(sets, num_devices, chooser);
  const std::int32_t per_node = num_devices / num_nodes;
  const routing::ReplicaStats nodes = routing::count_replicas(
      sets, num_nodes, [&](std::span<const std::uint16_t> experts, std::span<std::int32_t> out) {
        chooser(experts, out);
        for (std::int32_t& device : out) {
          device = device < 0 ? device : device / per_node;
        }
      });
  COTERIE_REQUIRE(devices.num_tokens > 0, "routing load: the layer has no token");
  RoutingLoad load;
  load.picks = static_cast<double>(devices.num_picks) / static_cast<double>(devices.num_tokens);
  load.node_replicas = nodes.replicas_per_token();
  load.device_replicas = devices.replicas_per_token();
  load.node_imbalance = nodes.receive_imbalance();
  load.device_imbalance = devices.receive_imbalance();
  load.load_imbalance = devices.load_imbalance();
  return load;
}

RoutingLoad random_load(std::int32_t num_experts, std::int32_t top_k, std::int32_t num_devices,
                        std::int32_t num_nodes) {
  COTERIE_REQUIRE(num_experts >= 1 && top_k >= 1 && top_k <= num_experts, "routing load: top ",
                  top_k, " of ", num_experts, " experts");
  COTERIE_REQUIRE(num_nodes >= 1 && num_devices >= num_nodes, "routing load: ", num_devices,
                  " devices on ", num_nodes, " nodes");
  RoutingLoad load;
  load.picks = top_k;
  load.node_replicas = expected_groups(num_experts, top_k, num_nodes);
  load.device_replicas = expected_groups(num_experts, top_k, num_devices);
  return load;
}

LayerWork work_of(const BlockShape& shape, const RoutingLoad& load,
                  const cost::ClusterProfile& profile, std::string_view engine_name) {
  check_shape(shape);
  const cost::Engine& engine = profile.engine(engine_name);
  LayerWork work;
  work.forward = phase_of(shape, load, profile, engine);
  work.backward = work.forward;
  work.backward.weights = work.forward.experts;
  work.backward.experts.calls *= profile.input_gradients;
  work.backward.weights.calls *= profile.weight_gradients;
  work.backward.shared_experts.calls *= 2;
  work.backward.attention.calls = profile.backward_attention;
  work.devices_per_node = profile.devices_per_node;
  if (profile.num_nodes > 1) {
    const double share = shape.shards_experts ? profile.devices_per_node : 1;
    work.gradient = {engine.all_reduce, shape.hidden * shape.hidden * (2 + 2 * shape.kv_share) /
                                            share * shape.gradient_bytes};
  }
  return work;
}

double LowerBound::time_s() const {
  return std::max({compute_s, inter_node_s, intra_node_s});
}

std::string_view LowerBound::bound_by() const {
  return time_s() == compute_s      ? name_of(cost::Resource::kCompute)
         : time_s() == inter_node_s ? name_of(cost::Resource::kInterNode)
                                    : name_of(cost::Resource::kIntraNode);
}

LowerBound lower_bound_of(const LayerWork& work) {
  LowerBound bound;
  for (const PhaseWork* phase : {&work.forward, &work.backward}) {
    bound.compute_s += phase->experts.time_s() + phase->weights.time_s() +
                       phase->shared_experts.time_s() + phase->attention.time_s();
    bound.inter_node_s += phase->dispatch.time_s() + phase->combine.time_s();
    bound.intra_node_s += phase->gather.time_s() + phase->scatter.time_s() +
                          phase->dense_gather.time_s() + phase->dense_scatter.time_s();
  }
  bound.inter_node_s += work.gradient.time_s();
  return bound;
}

}  // namespace coterie::schedule
