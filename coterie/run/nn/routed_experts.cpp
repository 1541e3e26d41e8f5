// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/routed_experts.hpp"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/experts_run.hpp"

namespace coterie::nn {
namespace {

MoELayerOptions checked(MoELayerOptions options) {
  const std::string& name = options.name;
  COTERIE_REQUIRE(options.hidden > 0 && options.intermediate > 0, name, ": experts of ",
                  options.hidden, " x ", options.intermediate);
  COTERIE_REQUIRE(options.num_experts > 0, name, ": number of experts is ", options.num_experts);
  if (options.expert_kind == ExpertKind::kCustom || options.expert_bias) {
    fail(ErrorCode::kUnsupported, name, ": experts with biases or of a user's own");
  }
  COTERIE_REQUIRE(
      options.type == at::kFloat || options.type == at::kDouble || options.type == at::kBFloat16,
      name, ": type is ", at::toString(options.type), ", not Float, Double or BFloat16");
  COTERIE_REQUIRE(options.forward_chunks > 0 && options.backward_chunks > 0, name, ": chunks are ",
                  options.forward_chunks, " and ", options.backward_chunks);
  exchange::check_exchange_options(options.exchange);
  if (!options.placement) {
    const int num_devices = options.expert_group == nullptr ? 1 : options.expert_group->size();
    options.placement = placement::contiguous_placement(options.num_experts, num_devices);
  }
  placement::check_layer_placement(*options.placement, name);
  COTERIE_REQUIRE(options.placement->num_experts == options.num_experts, name,
                  ": the placement is for ", options.placement->num_experts,
                  " experts, the layer has ", options.num_experts);
  return options;
}

std::vector<std::int32_t> experts_held(const MoELayerOptions& options) {
  if (options.expert_group != nullptr) {
    const int size = options.expert_group->size();
    COTERIE_REQUIRE(options.placement->num_devices() == size, options.name,
                    ": the placement is for ", options.placement->num_devices(),
                    " devices, the group has ", size, " ranks");
    return options.placement->experts_of_device.at(
        static_cast<std::size_t>(options.expert_group->rank()));
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(options.num_experts));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

ExpertsRun::Batch contiguous(const RoutedExperts::Batch& batch) {
  return {batch.rows.contiguous(), batch.ids.contiguous(), batch.weights.contiguous(), {}};
}

ExpertTensors contiguous(const RoutedExperts::Weights& weights) {
  return {weights.up.contiguous(), weights.down.contiguous(), {}, {}};
}

}  // namespace

RoutedExperts::RoutedExperts(MoELayerOptions options)
    : options_(checked(std::move(options))),
      expert_ids_(experts_held(options_)),
      run_(std::make_unique<ExpertsRun>(options_, expert_ids_)) {}

RoutedExperts::~RoutedExperts() = default;

void RoutedExperts::check(const Batch& batch, const Weights& weights) const {
  const std::string& name = options_.name;
  COTERIE_REQUIRE(batch.rows.dim() == 2 && batch.rows.size(1) == options_.hidden &&
                      batch.rows.scalar_type() == options_.type && batch.rows.device().is_cpu(),
                  name, ": rows must be ", at::toString(options_.type), " [tokens, ",
                  options_.hidden, "] on the CPU, they are ",
                  at::toString(batch.rows.scalar_type()), " ", batch.rows.sizes(), " on ",
                  batch.rows.device());
  const std::int64_t num_tokens = batch.rows.size(0);
  COTERIE_REQUIRE(batch.ids.dim() == 2 && batch.ids.size(0) == num_tokens &&
                      batch.ids.size(1) > 0 && batch.ids.scalar_type() == at::kInt,
                  name, ": ids must be int32 [", num_tokens, ", k], they are ",
                  at::toString(batch.ids.scalar_type()), " ", batch.ids.sizes());
  const at::ScalarType weight_type = options_.type == at::kDouble ? at::kDouble : at::kFloat;
  COTERIE_REQUIRE(
      batch.weights.sizes() == batch.ids.sizes() && batch.weights.scalar_type() == weight_type,
      name, ": weights must be ", at::toString(weight_type), " ", batch.ids.sizes(), ", they are ",
      at::toString(batch.weights.scalar_type()), " ", batch.weights.sizes());
  const auto num_held = static_cast<std::int64_t>(expert_ids_.size());
  const std::int64_t width =
      (options_.expert_kind == ExpertKind::kSwiGlu ? 2 : 1) * options_.intermediate;
  const bool fit =
      weights.up.sizes() == at::IntArrayRef({num_held, width, options_.hidden}) &&
      weights.down.sizes() == at::IntArrayRef({num_held, options_.hidden, options_.intermediate});
  COTERIE_REQUIRE(fit && weights.up.scalar_type() == options_.type &&
                      weights.down.scalar_type() == options_.type,
                  name, ": this rank's ", num_held, " experts need ", at::toString(options_.type),
                  " [", num_held, ", ", width, ", ", options_.hidden, "] and [", num_held, ", ",
                  options_.hidden, ", ", options_.intermediate, "], given are ",
                  at::toString(weights.up.scalar_type()), " ", weights.up.sizes(), " and ",
                  weights.down.sizes());
}

RoutedExperts::Forward RoutedExperts::forward(const Batch& batch, const Weights& weights,
                                              bool keep) {
  check(batch, weights);
  Forward result;
  const ExpertsRun::Batch task = contiguous(batch);
  result.y = at::empty_like(task.rows);
  result.state = run_->forward(task, contiguous(weights), result.y, keep);
  num_replicas_ += result.state->lists->sent.num_rows();
  num_tokens_ += task.rows.size(0);
  return result;
}

RoutedExperts::Gradients RoutedExperts::backward(layer::TrainingState& state, const Batch& batch,
                                                 const at::Tensor& grad_y, const Weights& weights) {
  check(batch, weights);
  COTERIE_REQUIRE(
      grad_y.sizes() == batch.rows.sizes() && grad_y.scalar_type() == batch.rows.scalar_type(),
      options_.name, ": the gradient of y is ", at::toString(grad_y.scalar_type()), " ",
      grad_y.sizes(), ", the rows are ", batch.rows.sizes());
  const ExpertTensors experts = contiguous(weights);
  ExpertsRun::Gradients gradients =
      run_->backward(state, batch.rows.contiguous(), grad_y.contiguous(), experts, experts);
  return {gradients.rows, gradients.weights, gradients.experts.up, gradients.experts.down};
}

std::uint64_t RoutedExperts::bytes_sent(comm::Purpose purpose) const {
  return run_->bytes_sent(purpose);
}

}  // namespace coterie::nn
