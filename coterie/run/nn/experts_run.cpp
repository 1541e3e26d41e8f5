// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/experts_run.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/expert_gradients.hpp"
#include "coterie/run/nn/tensor_rows.hpp"

namespace coterie::nn {
namespace {

kernels::Activation activation_of(ExpertKind kind) {
  switch (kind) {
    case ExpertKind::kGelu: return kernels::Activation::kGelu;
    case ExpertKind::kGeluTanh: return kernels::Activation::kGeluTanh;
    default: return kernels::Activation::kSwiGlu;
  }
}

layer::TrainingOptions core_options(const MoELayerOptions& options) {
  layer::TrainingOptions core;
  core.name = options.name;
  core.hidden = options.hidden;
  core.intermediate =
      options.intermediate / (options.shard_group == nullptr ? 1 : options.shard_group->size());
  if (options.expert_kind == ExpertKind::kCustom) {
    core.intermediate = 1;  // not used: the core only moves rows
  }
  core.num_experts = options.num_experts;
  core.activation = activation_of(options.expert_kind);
  core.exchange = options.exchange;
  core.forward_chunks = options.forward_chunks;
  core.backward_chunks = options.backward_chunks;
  core.recompute = options.recompute;
  return core;
}

/// A group of one rank needs no messages: then this process is the only device.
exchange::RankGroups groups_of(const MoELayerOptions& options) {
  if (options.shard_group == nullptr && options.expert_group != nullptr &&
      options.expert_group->size() == 1 && options.movement == nullptr) {
    return {};
  }
  return {options.expert_group, options.shard_group};
}

}  // namespace

ExpertsRun::ExpertsRun(const MoELayerOptions& options, std::vector<std::int32_t> expert_ids)
    : hooks_(options.hooks),
      groups_(groups_of(options)),
      expert_ids_(std::move(expert_ids)),
      core_(core_options(options), *options.placement, groups_, options.execution,
            options.movement) {
  if (!options.placement->has_single_copies()) {
    chooser_.emplace(*options.placement);
  }
  if (hooks_.has_middle()) {
    row_hooks_.emplace(hooks_);
  }
}

std::int64_t ExpertsRun::place_of(std::int32_t expert) const {
  const auto found = std::lower_bound(expert_ids_.begin(), expert_ids_.end(), expert);
  COTERIE_CHECK(found != expert_ids_.end() && *found == expert, "expert ", expert, " is not held");
  return found - expert_ids_.begin();
}

std::uint64_t ExpertsRun::bytes_sent(comm::Purpose purpose) const {
  std::uint64_t bytes = 0;
  for (const comm::Communicator* group : {groups_.expert, groups_.shard}) {
    bytes += group == nullptr ? 0 : group->traffic().sent_for(purpose);
  }
  return bytes;
}

exchange::TokenRouting ExpertsRun::routing_of(const at::Tensor& ids) {
  const auto top_k = static_cast<std::size_t>(ids.size(1));
  const std::span<const std::int32_t> picks(ids.const_data_ptr<std::int32_t>(),
                                            static_cast<std::size_t>(ids.numel()));
  device_of_pick_.clear();
  if (chooser_) {
    COTERIE_REQUIRE(top_k <= placement::ReplicaChooser::kMaxTopK, core_.options().name,
                    ": top_k is ", top_k, "; with several copies at most ",
                    placement::ReplicaChooser::kMaxTopK, " is supported");
    device_of_pick_.resize(picks.size());
    for (std::size_t pick = 0; pick < picks.size(); pick += top_k) {
      chooser_->choose(picks.subspan(pick, top_k), std::span(device_of_pick_).subspan(pick, top_k));
    }
  }
  return {ids.size(0), static_cast<std::int32_t>(top_k), picks, {}, device_of_pick_};
}

std::vector<layer::DeviceExperts> ExpertsRun::views(const ExpertTensors& experts) const {
  std::vector<layer::DeviceExperts> devices;
  const auto add = [](const at::Tensor& tensor, std::int64_t place,
                      std::vector<kernels::ConstMatrixView>& to) {
    if (tensor.defined()) {
      to.push_back(view_of(tensor[place]));
    }
  };
  for (const std::int32_t device : core_.local_devices()) {
    layer::DeviceExperts held;
    for (const std::int32_t expert : core_.index().experts_of(device)) {
      const std::int64_t place = place_of(expert);
      add(experts.up, place, held.up);
      add(experts.down, place, held.down);
      add(experts.up_bias, place, held.up_bias);
      add(experts.down_bias, place, held.down_bias);
    }
    devices.push_back(std::move(held));
  }
  return devices;
}

std::unique_ptr<layer::TrainingState> ExpertsRun::forward(const Batch& batch,
                                                          const ExpertTensors& experts,
                                                          const at::Tensor& y, bool keep) {
  const layer::TrainingBatch task{view_of(batch.rows), routing_of(batch.ids),
                                  view_of(batch.weights), batch.source_offsets, keep};
  return core_.forward(task, views(experts), mutable_view_of(y), hooks());
}

ExpertsRun::Gradients ExpertsRun::backward(layer::TrainingState& state, const at::Tensor& rows,
                                           const at::Tensor& grad_y, const ExpertTensors& experts,
                                           const ExpertTensors& wanted) {
  Gradients gradients;
  gradients.rows = at::empty_like(rows);
  const bool is_fp64 = rows.scalar_type() == at::kDouble;
  const auto& lists = *state.lists;
  gradients.weights = at::empty({lists.num_tokens, lists.top_k},
                                rows.options().dtype(is_fp64 ? at::kDouble : at::kFloat));
  ExpertGradients collected(core_, expert_ids_, wanted);
  core_.backward(
      state, view_of(rows), view_of(grad_y), views(experts),
      {mutable_view_of(gradients.rows), mutable_view_of(gradients.weights), collected.views()},
      hooks());
  gradients.experts = collected.finish(chooser_ ? groups_.expert : nullptr);
  return gradients;
}

}  // namespace coterie::nn
