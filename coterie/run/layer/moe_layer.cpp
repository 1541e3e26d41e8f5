// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/moe_layer.hpp"

#include <algorithm>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::layer {
namespace {

using exchange::TokenRouting;
using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

void check_weights(const MoeOptions& options, const MoeWeights& weights) {
  const auto& router = weights.router;
  COTERIE_REQUIRE(router.data != nullptr && router.rows == options.num_experts &&
                      router.columns == options.hidden,
                  options.name, ": router is [", router.rows, ", ", router.columns, "], not [",
                  options.num_experts, ", ", options.hidden, "]");
  for (const auto* tensors : {&weights.gate_up, &weights.down}) {
    COTERIE_REQUIRE(std::ssize(*tensors) == options.num_experts, options.name,
                    ": there are weights of ", tensors->size(), " experts, not ",
                    options.num_experts);
  }
}

}  // namespace

MoeLayer::MoeLayer(MoeOptions options, MoeWeights weights,
                   std::optional<placement::LayerPlacement> placement,
                   comm::Communicator* communicator, const kernels::Execution& execution,
                   std::shared_ptr<Workspace> workspace)
    : options_(std::move(options)),
      weights_(std::move(weights)),
      execution_(execution),
      workspace_(workspace != nullptr ? std::move(workspace) : std::make_shared<Workspace>()) {
  check_moe_options(options_);
  check_weights(options_, weights_);
  COTERIE_REQUIRE(communicator == nullptr || placement.has_value(), options_.name,
                  ": several ranks need a placement");
  if (options_.plain_loops && communicator != nullptr) {
    fail(ErrorCode::kUnsupported, options_.name,
         ": plain loops need all experts in one process, without a communicator");
  }
  if (!placement) {
    placement = placement::contiguous_placement(options_.num_experts, 1);
  }
  COTERIE_REQUIRE(placement->num_experts == options_.num_experts, options_.name,
                  ": the placement is for ", placement->num_experts, " experts, the layer has ",
                  options_.num_experts);
  if (!placement->has_single_copies()) {
    chooser_.emplace(*placement);
    COTERIE_REQUIRE(options_.top_k <= static_cast<int>(placement::ReplicaChooser::kMaxTopK),
                    options_.name, ": top_k is ", options_.top_k, "; with several copies at most ",
                    placement::ReplicaChooser::kMaxTopK, " is supported");
  }
  if (options_.pruner != nullptr) {
    COTERIE_REQUIRE(options_.pruner->limit().num_experts() == options_.num_experts, options_.name,
                    ": the pruner is for ", options_.pruner->limit().num_experts(),
                    " experts, the layer has ", options_.num_experts);
    pruner_.emplace(options_.pruner, options_.norm_topk_prob);
  }
  index_ = std::make_unique<exchange::PlacementIndex>(std::move(*placement));
  exchange_ = std::make_unique<exchange::Exchange>(*index_, options_.exchange, communicator,
                                                   options_.name, execution_, workspace_->rows);
  for (const std::int32_t device : exchange_->local_devices()) {
    experts_.emplace_back(options_, weights_, index_->experts_of(device));
  }
}

void MoeLayer::forward(const ConstMatrixView& x, const MatrixView& y, RoutingRecord* record) {
  check_rows(x, y);
  const auto num_picks = static_cast<std::size_t>(x.rows * options_.top_k);
  logits_.resize(static_cast<std::size_t>(x.rows * options_.num_experts));
  ids_.resize(num_picks);
  pick_weights_.resize(num_picks);
  const MatrixView logits{logits_.data(), x.rows, options_.num_experts, options_.num_experts,
                          DType::kFloat32};
  kernels::linear(x, weights_.router, logits, execution_);
  const std::int64_t bad_token = kernels::topk_gate(
      logits, {options_.top_k, options_.norm_topk_prob}, ids_, pick_weights_, execution_);
  std::int64_t num_pruned = 0;
  if (pruner_) {
    unpruned_ids_ = ids_;
    num_pruned = pruner_->apply(logits, options_.top_k, ids_, pick_weights_, execution_);
  }

  const TokenRouting routing{x.rows, options_.top_k, ids_, pick_weights_, choose_devices(ids_)};
  run(x, routing, y);
  if (record != nullptr) {
    fill_record(x, routing, *record);
    record->logits.assign(logits_.begin(), record->keep_logits ? logits_.end() : logits_.begin());
    record->unpruned_ids = unpruned_ids_;
    record->num_pruned_tokens = num_pruned;
  }
  // Reported last, so that ranks without the fault are not left waiting in a collective.
  COTERIE_REQUIRE(bad_token < 0, options_.name, ": token ", bad_token,
                  ": its router logits hold NaN or +inf, or are all -inf");
}

void MoeLayer::forward_routed(const ConstMatrixView& x, const GivenRouting& given,
                              const MatrixView& y, RoutingRecord* record) {
  check_rows(x, y);
  TokenRouting routing{x.rows, options_.top_k, given.expert_ids, given.weights,
                       given.device_of_pick};
  if (given.device_of_pick.empty() && chooser_) {
    // The chooser promises nothing for ids out of range.
    exchange::check_token_routing(routing, *index_, options_.name);
    routing.device_of_pick = choose_devices(given.expert_ids);
  }
  run(x, routing, y);
  if (record != nullptr) {
    fill_record(x, routing, *record);
    record->logits.clear();
    record->unpruned_ids.clear();
    record->num_pruned_tokens = 0;
  }
}

void MoeLayer::check_rows(const ConstMatrixView& x, const ConstMatrixView& y) const {
  for (const auto* rows : {&x, &y}) {
    COTERIE_REQUIRE(rows->columns == options_.hidden && rows->rows == x.rows, options_.name,
                    rows == &x ? ": x is [" : ": y is [", rows->rows, ", ", rows->columns,
                    "], not [", x.rows, ", ", options_.hidden, "]");
  }
}

std::span<const std::int32_t> MoeLayer::choose_devices(std::span<const std::int32_t> ids) {
  if (!chooser_) {
    return {};
  }
  device_of_pick_.resize(ids.size());
  const auto top_k = static_cast<std::size_t>(options_.top_k);
  for (std::size_t pick = 0; pick < ids.size(); pick += top_k) {
    chooser_->choose(ids.subspan(pick, top_k), std::span(device_of_pick_).subspan(pick, top_k));
  }
  return device_of_pick_;
}

void MoeLayer::run(const ConstMatrixView& x, const TokenRouting& routing, const MatrixView& y) {
  if (options_.plain_loops) {
    run_plain_loops(x, routing, y);
    return;
  }
  exchange_->dispatch(x, routing);
  const auto devices = exchange_->local_devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::int64_t part = 0; part < exchange_->num_parts(devices[i]); ++part) {
      const exchange::DeviceWork work = exchange_->work(devices[i], part);
      exchange_->take_back(experts_[i].compute(work, workspace_->products, execution_));
    }
  }
  exchange_->combine(y);
}

void MoeLayer::run_plain_loops(const ConstMatrixView& x, const TokenRouting& routing,
                               const MatrixView& y) {
  exchange::check_token_routing(routing, *index_, options_.name);
  const auto expert_function = [&](std::int32_t expert, const ConstMatrixView& rows,
                                   std::int64_t row, std::span<float> out) {
    const std::int32_t row_of[] = {static_cast<std::int32_t>(row)};
    const std::int64_t offsets[] = {0, 1};
    const ExpertProducts one(options_, weights_, {expert});
    const ConstMatrixView result =
        one.compute({0, rows, row_of, offsets}, workspace_->products, execution_);
    std::copy_n(result.row<float>(0), out.size(), out.begin());
  };
  exchange::reference_exchange(routing, *index_, options_.exchange, x, expert_function, y);
}

void MoeLayer::fill_record(const ConstMatrixView& x, const TokenRouting& routing,
                           RoutingRecord& record) const {
  record.num_tokens = routing.num_tokens;
  record.top_k = routing.top_k;
  record.expert_ids.assign(routing.expert_ids.begin(), routing.expert_ids.end());
  record.weights.assign(routing.weights.begin(), routing.weights.end());
  record.device_of_pick.resize(routing.expert_ids.size());
  for (std::size_t pick = 0; pick < record.device_of_pick.size(); ++pick) {
    const auto token = static_cast<std::int64_t>(pick) / routing.top_k;
    const auto i = static_cast<std::int32_t>(static_cast<std::int64_t>(pick) % routing.top_k);
    record.device_of_pick[pick] =
        routing.expert_ids[pick] < 0 ? -1 : routing.device(*index_, token, i);
  }
  record.predicted = exchange::predict_home_traffic(routing, *index_,
                                                    {options_.hidden, x.type, options_.exchange});
  record.rows_received.clear();
  for (const std::int32_t device : exchange_->local_devices()) {
    record.rows_received.push_back(
        options_.plain_loops
            ? static_cast<std::int64_t>(record.predicted.rows_to[static_cast<std::size_t>(device)])
            : exchange_->num_rows_received(device));
  }
}

}  // namespace coterie::layer
