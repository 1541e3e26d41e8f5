// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/moe_layer.hpp"

namespace coterie::nn {

at::Tensor reference_experts(ExpertsImpl& experts, const at::Tensor& rows, const at::Tensor& ids,
                             const at::Tensor& weights) {
  at::Tensor sums = at::zeros({rows.size(0), rows.size(1)}, weights.options());
  for (std::int64_t place = 0; place < std::ssize(experts.expert_ids()); ++place) {
    const std::int32_t expert = experts.expert_ids()[static_cast<std::size_t>(place)];
    const auto picks = at::where(ids.eq(expert));  // rows ascending
    const at::Tensor outputs = experts.apply(place, rows.index_select(0, picks[0]));
    const at::Tensor weight = weights.index({picks[0], picks[1]}).unsqueeze(1);
    sums = sums.index_add(0, picks[0], outputs.to(weights.scalar_type()) * weight);
  }
  return sums.to(rows.scalar_type());
}

}  // namespace coterie::nn
