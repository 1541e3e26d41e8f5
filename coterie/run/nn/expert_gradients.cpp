// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/expert_gradients.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "coterie/run/nn/copy_sums.hpp"
#include "coterie/run/nn/experts_run.hpp"
#include "coterie/run/nn/tensor_rows.hpp"

namespace coterie::nn {

ExpertGradients::ExpertGradients(const layer::TrainingLayer& core,
                                 const std::vector<std::int32_t>& expert_ids,
                                 const ExpertTensors& like)
    : core_(core), expert_ids_(expert_ids), views_(core.local_devices().size()) {
  up_ = make(like.up, &layer::DeviceGradients::up);
  down_ = make(like.down, &layer::DeviceGradients::down);
  up_bias_ = make(like.up_bias, &layer::DeviceGradients::up_bias);
  down_bias_ = make(like.down_bias, &layer::DeviceGradients::down_bias);
}

ExpertGradients::Sums ExpertGradients::make(
    const at::Tensor& like, std::vector<kernels::MatrixView> layer::DeviceGradients::*views) {
  Sums sums;
  if (!like.defined()) {
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const std::int32_t device = core_.local_devices()[i];
      (views_[i].*views).resize(static_cast<std::size_t>(core_.index().num_slots(device)));
    }
    return sums;
  }
  sums.type = like.scalar_type();
  const auto sum_type = sums.type == at::kDouble ? at::kDouble : at::kFloat;
  sums.first = at::empty_like(like, like.options().dtype(sum_type));
  std::vector<bool> is_taken(expert_ids_.size(), false);
  for (std::size_t i = 0; i < views_.size(); ++i) {
    for (const std::int32_t expert : core_.index().experts_of(core_.local_devices()[i])) {
      const auto place = static_cast<std::size_t>(
          std::lower_bound(expert_ids_.begin(), expert_ids_.end(), expert) - expert_ids_.begin());
      at::Tensor sum = sums.first[static_cast<std::int64_t>(place)];
      if (is_taken[place]) {
        sum = at::empty_like(sum);
        sums.others.push_back(sum);
        sums.place_of_other.push_back(static_cast<std::int64_t>(place));
      }
      is_taken[place] = true;
      (views_[i].*views).push_back(mutable_view_of(sum));
    }
  }
  return sums;
}

at::Tensor ExpertGradients::total(const Sums& sums, comm::Communicator* group) const {
  if (!sums.first.defined()) {
    return {};
  }
  for (std::size_t i = 0; i < sums.others.size(); ++i) {
    sums.first[sums.place_of_other[i]].add_(sums.others[i]);
  }
  if (group != nullptr) {
    at::Tensor own = sums.first;
    sum_copies(*group, core_.index().placement(), own);
  }
  return sums.first.to(sums.type);
}

ExpertTensors ExpertGradients::finish(comm::Communicator* group) const {
  const at::NoGradGuard no_grad;
  return {total(up_, group), total(down_, group), total(up_bias_, group), total(down_bias_, group)};
}

}  // namespace coterie::nn
