// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "coterie/base/json.hpp"
#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/plan/schedule/layer_work.hpp"

namespace coterie::schedule {

/// What a placement makes of one layer's tokens, as the busiest device and node see it: links and
/// products are timed by those, not by means (docs/design/016).
struct RoutingLoad {
  double picks = 1;             ///< experts a token
  double node_replicas = 1;     ///< C_N: nodes a token is sent to, mean
  double device_replicas = 1;   ///< C_D: devices a token is sent to, mean
  double node_imbalance = 1;    ///< max / mean over nodes of rows received
  double device_imbalance = 1;  ///< max / mean over devices of rows received
  double load_imbalance = 1;    ///< max / mean over devices of (token, expert) pairs

  bool operator==(const RoutingLoad&) const = default;
};
Json to_json(const RoutingLoad& load);

/// Counts the tokens of one layer. Devices are cut into `num_nodes` nodes, consecutive devices
/// together (must divide num_devices); `chooser` says which device serves each expert of a token.
/// kBadInput if there is no token.
RoutingLoad measure_load(const routing::ExpertSets& sets, std::int32_t num_devices,
                         std::int32_t num_nodes, const routing::DeviceChooser& chooser);

/// The load of a placement that knows nothing of the routing, for num_experts / num_devices experts
/// a device: expected replicas, loads even.
RoutingLoad random_load(std::int32_t num_experts, std::int32_t top_k, std::int32_t num_devices,
                        std::int32_t num_nodes);

/// A block of a model and the batch that a device works on.
struct BlockShape {
  double hidden = 0;               ///< M
  double intermediate = 0;         ///< H of one expert
  double num_matrices = 3;         ///< of an expert: gate, up, down; 2 without gate
  double shared_intermediate = 0;  ///< of experts that every token uses; 0: none
  double kv_share = 1;             ///< key/value heads over query heads
  double tokens = 0;               ///< of a device and step
  double sequence_length = 0;      ///< of one sequence: attention is quadratic in it
  double activation_bytes = 2;     ///< of a number in a dispatched row
  double sum_bytes = 4;            ///< of a number in a partial sum on its way home
  double gradient_bytes = 4;       ///< of a number in the dense all-reduce
  /// Each expert is cut over the devices of a node (expert sharding, "ESP"): a placement's device
  /// is then a whole node, and tokens are gathered inside it. Else each device holds whole experts.
  bool shards_experts = false;

  bool operator==(const BlockShape&) const = default;
};

/// Sizes of every stage of the block on the busiest device, and what they cost on the cluster
/// (profile.num_nodes nodes). With N devices a node, T tokens a device and bottleneck replicas C_N,
/// C_D (mean x imbalance), rows are
///   sharded experts:  D, C  C_N T       AG, RS  C_N T N (all-gather, reduce-scatter)
///   whole experts:    D, C  C_N T       AG, RS  C_D T   (exchange inside the node)
/// Rows go out in activation_bytes and come home as partial sums in sum_bytes. On one node D and C,
/// with one device a node AG and RS, take no time. kBadInput for sizes that are not positive.
LayerWork work_of(const BlockShape& shape, const RoutingLoad& load,
                  const cost::ClusterProfile& profile, std::string_view engine = "");

/// What no schedule can beat: the time of the resource that is busiest when nothing is cut.
struct LowerBound {
  double compute_s = 0;
  double inter_node_s = 0;
  double intra_node_s = 0;

  [[nodiscard]] double time_s() const;
  [[nodiscard]] std::string_view bound_by() const;  ///< "compute", "inter_node", "intra_node"
  bool operator==(const LowerBound&) const = default;
};
LowerBound lower_bound_of(const LayerWork& work);

}  // namespace coterie::schedule
