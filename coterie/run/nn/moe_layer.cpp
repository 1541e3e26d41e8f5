// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/moe_layer.hpp"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/custom_experts.hpp"
#include "coterie/run/nn/device_experts.hpp"
#include "coterie/run/nn/expert_backend.hpp"
#include "coterie/run/nn/experts_function.hpp"
#include "coterie/run/nn/experts_run.hpp"

namespace coterie::nn {
namespace {

MoELayerOptions completed(MoELayerOptions options) {
  if (options.shard_group != nullptr && options.shard_group->size() == 1) {
    options.shard_group = nullptr;
  }
  check_moe_layer_options(options);
  if (options.order == nullptr) {
    options.order = gates::make_order({});
  }
  if (!options.placement) {
    const int num_devices = options.expert_group == nullptr ? 1 : options.expert_group->size();
    options.placement = placement::contiguous_placement(options.num_experts, num_devices);
  }
  placement::check_layer_placement(*options.placement, options.name);
  COTERIE_REQUIRE(options.placement->num_experts == options.num_experts, options.name,
                  ": the placement is for ", options.placement->num_experts,
                  " experts, the layer has ", options.num_experts);
  return options;
}

/// The experts whose parameters this process holds.
std::vector<std::int32_t> experts_held(const MoELayerOptions& options) {
  if (options.expert_group != nullptr) {
    return options.placement->experts_of_device.at(
        static_cast<std::size_t>(options.expert_group->rank()));
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(options.num_experts));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

at::Tensor call(const Hook& hook, const at::Tensor& tensor) {
  if (!hook) {
    return tensor;
  }
  const at::Tensor replaced = hook({}, tensor);
  return replaced.defined() ? replaced : tensor;
}

}  // namespace

MoELayerImpl::MoELayerImpl(MoELayerOptions options)
    : torch::nn::Module("MoELayer"), options_(completed(std::move(options))) {
  register_module("gate", options_.gate);
  if (options_.pruner != nullptr) {
    options_.gate->set_pruner(options_.pruner);
  }
  experts_ = register_module("experts", Experts(options_, experts_held(options_)));
  run_ = std::make_shared<ExpertsRun>(options_, experts_->expert_ids());
}

MoELayerImpl::~MoELayerImpl() = default;

void MoELayerImpl::set_plan(std::optional<schedule::LayerPlan> plan) {
  run_->core().set_plan(std::move(plan));
}

void MoELayerImpl::set_run(const layer::LayerRun& run) {
  run_->core().set_run(run);
}

void MoELayerImpl::set_virtual_sources(std::vector<std::int64_t> offsets) {
  COTERIE_REQUIRE(offsets.empty() || options_.expert_group == nullptr, options_.name,
                  ": virtual sources need one process that stands for all devices");
  virtual_sources_ = std::move(offsets);
}

MoEResult MoELayerImpl::forward(const gates::TokenBatch& batch) {
  COTERIE_REQUIRE(batch.x.defined() && batch.x.dim() == 2 && batch.x.size(1) == options_.hidden &&
                      batch.x.scalar_type() == options_.type,
                  options_.name, ": x must be ", at::toString(options_.type), " [tokens, ",
                  options_.hidden, "]");
  gates::TokenBatch started = batch;
  started.x = call(options_.hooks.before_start, batch.x);
  const gates::Routing routing = options_.gate->forward(started);
  const gates::OrderedRows rows = options_.order->order(started, routing);
  COTERIE_REQUIRE(options_.top_k == 0 || rows.ids.size(1) == options_.top_k, options_.name,
                  ": the gate gives ", rows.ids.size(1), " experts a row, top_k is ",
                  options_.top_k);
  MoEResult result;
  result.statistics.routing = rows.statistics;
  result.counts = rows.counts;
  result.statistics.num_rows = rows.rows.size(0);
  result.ids = rows.ids;
  result.router_ids = routing.unpruned_ids.defined() ? routing.unpruned_ids : routing.ids;
  result.aux_loss = routing.aux_loss;
  const at::Tensor outputs = run_experts(rows, result.statistics);
  result.y = call(options_.hooks.before_end, options_.order->restore(outputs, started, rows));
  return result;
}

at::Tensor MoELayerImpl::run_experts(const gates::OrderedRows& rows, MoEStatistics& statistics) {
  if (options_.path == LayerPath::kReference) {
    statistics.num_replicas = rows.rows.size(0);
    return reference_experts(*experts_, rows.rows, rows.ids, rows.weights);
  }
  if (options_.path == LayerPath::kGroupedMm || rows.rows.is_cuda()) {
    statistics.num_replicas = rows.rows.size(0);
    return run_here(rows);
  }
  const bool is_fp64 = options_.type == at::kDouble;
  ExpertsRun::Batch batch;
  batch.rows = rows.rows.contiguous();
  batch.ids = rows.ids.contiguous();
  batch.weights = rows.weights.to(is_fp64 ? at::kDouble : at::kFloat).contiguous();
  batch.source_offsets = virtual_sources_;
  const std::array<std::uint64_t, 3> before = bytes_sent();
  const at::Tensor y =
      options_.expert_kind == ExpertKind::kCustom
          ? custom_experts(run_, *experts_, batch, statistics.num_replicas)
          : experts_function(run_, batch,
                             {experts_->up, experts_->down, experts_->up_bias, experts_->down_bias},
                             statistics.num_replicas);
  const std::array<std::uint64_t, 3> after = bytes_sent();
  statistics.bytes_metadata = after[0] - before[0];
  statistics.bytes_dispatch = after[1] - before[1];
  statistics.bytes_combine = after[2] - before[2];
  return y;
}

/// All experts on the rows' own device, without the exchange.
at::Tensor MoELayerImpl::run_here(const gates::OrderedRows& rows) {
  if (options_.expert_group != nullptr &&
      options_.expert_group->size() * (options_.shard_group ? options_.shard_group->size() : 1) >
          1) {
    fail(ErrorCode::kUnsupported, options_.name, ": on a GPU the experts of a layer are those of ",
         "one process; here they are spread over ", options_.expert_group->size(),
         " ranks, which needs the exchange between GPUs");
  }
  if (options_.hooks.has_middle()) {
    fail(ErrorCode::kUnsupported, options_.name,
         ": hooks around dispatch and combine need the exchange, which a layer of one GPU has not");
  }
  if (options_.expert_kind == ExpertKind::kCustom) {
    return reference_experts(*experts_, rows.rows, rows.ids, rows.weights);
  }
  if (options_.path == LayerPath::kExchange && has_device_kernels(options_)) {
    return device_experts(rows.rows, rows.ids, rows.weights,
                          {experts_->up, experts_->down, experts_->up_bias, experts_->down_bias});
  }
  return compute_experts(ExpertBackend::kGroupedMm, *experts_, rows.rows, rows.ids, rows.weights);
}

std::array<std::uint64_t, 3> MoELayerImpl::bytes_sent() const {
  return {run_->bytes_sent(comm::Purpose::kMetadata), run_->bytes_sent(comm::Purpose::kDispatch),
          run_->bytes_sent(comm::Purpose::kCombine)};
}

}  // namespace coterie::nn
