// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/synthetic_layer.hpp"

#include <numeric>
#include <span>

#include "coterie/base/error.hpp"
#include "coterie/base/hash.hpp"

namespace coterie::layer {
namespace {

/// [tokens, k] distinct experts of one rank.
std::vector<std::int32_t> draw_picks(const SyntheticShape& shape, int rank) {
  Random random(shape.seed, 1000 + static_cast<std::uint64_t>(rank));
  std::vector<std::int32_t> pool(static_cast<std::size_t>(shape.num_experts));
  std::iota(pool.begin(), pool.end(), 0);
  std::vector<std::int32_t> picks;
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    for (std::int32_t i = 0; i < shape.top_k; ++i) {  // the first steps of a shuffle
      const auto at = static_cast<std::size_t>(i);
      const auto rest = static_cast<std::uint64_t>(shape.num_experts - i);
      std::swap(pool[at], pool[at + static_cast<std::size_t>(random.below(rest))]);
      picks.push_back(pool[at]);
    }
  }
  return picks;
}

schedule::RoutingLoad load_of(const SyntheticShape& shape, const placement::LayerPlacement& placed,
                              int num_ranks) {
  std::vector<std::uint16_t> ids;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const std::int32_t id : draw_picks(shape, rank)) {
      ids.push_back(static_cast<std::uint16_t>(id));
    }
  }
  const placement::ReplicaChooser chooser(placed);
  std::vector<std::int32_t> wide;
  return schedule::measure_load(
      routing::make_expert_sets(ids, shape.top_k, shape.num_experts), placed.num_devices(),
      placed.num_devices(),
      [&](std::span<const std::uint16_t> experts, std::span<std::int32_t> devices) {
        wide.assign(experts.begin(), experts.end());
        chooser.choose(wide, devices);
      });
}

exchange::RankGroups groups_of(const profiling::Nodes& nodes) {
  return {nodes.between.get(), nodes.devices_per_node > 1 ? nodes.inside.get() : nullptr};
}

/// What a device computes: all that reaches its node, of experts that it holds a part of.
SyntheticShape alone(SyntheticShape shape, int num_nodes, int devices_per_node) {
  shape.tokens *= devices_per_node;
  shape.num_experts /= num_nodes;
  shape.intermediate /= devices_per_node;
  shape.top_k = std::min(shape.top_k, shape.num_experts);
  return shape;
}

}  // namespace

SyntheticLayer::SyntheticLayer(const SyntheticShape& shape, const profiling::Nodes& nodes,
                               const kernels::Execution& execution)
    : SyntheticLayer(shape, groups_of(nodes), nodes.num_nodes, nodes.devices_per_node,
                     nodes.node * nodes.devices_per_node + nodes.place, execution) {}

SyntheticLayer::SyntheticLayer(const SyntheticShape& shape, int num_nodes, int devices_per_node,
                               const kernels::Execution& execution)
    : SyntheticLayer(alone(shape, num_nodes, devices_per_node), {}, 1, 1, 0, execution) {}

SyntheticLayer::SyntheticLayer(const SyntheticShape& shape, const exchange::RankGroups& groups,
                               int num_nodes, int devices_per_node, int rank,
                               const kernels::Execution& execution)
    : shape_(shape),
      devices_per_node_(devices_per_node),
      random_(shape.seed, static_cast<std::uint64_t>(rank)),
      ids_(draw_picks(shape, rank)) {
  COTERIE_REQUIRE(shape.top_k >= 1 && shape.top_k <= shape.num_experts && shape.tokens >= 1 &&
                      shape.hidden >= 1,
                  "synthetic layer: top ", shape.top_k, " of ", shape.num_experts, " experts, ",
                  shape.tokens, " tokens of width ", shape.hidden);
  COTERIE_REQUIRE(shape.num_experts % num_nodes == 0 && shape.intermediate % devices_per_node == 0,
                  "synthetic layer: ", shape.num_experts, " experts of width ", shape.intermediate,
                  " do not divide over ", num_nodes, " nodes of ", devices_per_node);
  const auto placed = placement::contiguous_placement(shape.num_experts, num_nodes);
  load_ = load_of(shape, placed, num_nodes * devices_per_node);
  const std::int64_t width = shape.intermediate / devices_per_node;
  x_ = add(shape.tokens, shape.hidden, 1);
  grad_y_ = add(shape.tokens, shape.hidden, 1);
  weights_ = add(shape.tokens, shape.top_k, 0.5);
  for (kernels::MatrixView* result : {&y_, &grad_x_}) {
    results_.push_back(*result = add(shape.tokens, shape.hidden, 0));
  }
  results_.push_back(grad_weights_ = add(shape.tokens, shape.top_k, 0));
  for (std::int32_t i = 0; i < shape.num_experts / num_nodes; ++i) {
    experts_.up.push_back(add(2 * width, shape.hidden, 0.05));
    experts_.down.push_back(add(shape.hidden, width, 0.05));
    gradients_.up.push_back(add(2 * width, shape.hidden, 0));
    gradients_.down.push_back(add(shape.hidden, width, 0));
    results_.push_back(gradients_.up.back());
    results_.push_back(gradients_.down.back());
  }
  TrainingOptions options;
  options.name = "synthetic layer";
  options.hidden = shape.hidden;
  options.intermediate = width;
  options.num_experts = shape.num_experts;
  layer_ = std::make_unique<TrainingLayer>(options, placed, groups, execution);
}

kernels::MatrixView SyntheticLayer::add(std::int64_t rows, std::int64_t columns, double scale) {
  memory_.push_back(std::make_unique<std::vector<float>>(static_cast<std::size_t>(rows * columns)));
  if (scale > 0) {
    for (float& value : *memory_.back()) {
      value = static_cast<float>((2 * random_.uniform() - 1) * scale);
    }
  }
  return {memory_.back()->data(), rows, columns, columns, kernels::DType::kFloat32};
}

void SyntheticLayer::forward() {
  const TrainingBatch batch{x_, {shape_.tokens, shape_.top_k, ids_, {}, {}}, weights_, {}};
  state_ = layer_->forward(batch, {&experts_, 1}, y_);
}

void SyntheticLayer::backward() {
  COTERIE_CHECK(state_ != nullptr, "backward before forward");
  layer_->backward(*state_, x_, grad_y_, {&experts_, 1},
                   {grad_x_, grad_weights_, {&gradients_, 1}});
}

schedule::BlockShape SyntheticLayer::block() const {
  schedule::BlockShape block;
  block.hidden = static_cast<double>(shape_.hidden);
  block.intermediate = static_cast<double>(shape_.intermediate);
  block.tokens = static_cast<double>(shape_.tokens);
  block.sequence_length = static_cast<double>(shape_.tokens);
  block.activation_bytes = 4;
  block.sum_bytes = 4;
  block.shards_experts = devices_per_node_ > 1;
  return block;
}

std::uint64_t SyntheticLayer::digest() const {
  Hash hash;
  for (const kernels::MatrixView& result : results_) {
    hash.add(std::span(static_cast<const std::byte*>(result.data),
                       static_cast<std::size_t>(result.rows * result.columns * 4)));
  }
  return hash.value();
}

schedule::LayerPlan step_by_step_plan() {
  schedule::LayerPlan plan;
  plan.schedule = "step_by_step";
  plan.forward.lane_orders = {"E1", "D1 AG1 RS1 C1", ""};
  plan.backward.lane_orders = {"E1 W1", "D1 AG1 RS1 C1", ""};
  plan.backward.weight_tasks = 1;
  return plan;
}

}  // namespace coterie::layer
