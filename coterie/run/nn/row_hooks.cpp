// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/row_hooks.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "coterie/run/nn/tensor_rows.hpp"

namespace coterie::nn {

kernels::ConstMatrixView TensorRowHooks::replace(const exchange::RowHookPoint& point,
                                                 kernels::ConstMatrixView rows) {
  const auto& hook = [&]() -> const Hook& {
    switch (point.place) {
      case exchange::RowHookPlace::kBeforeDispatch: return hooks_.before_dispatch;
      case exchange::RowHookPlace::kAfterDispatch: return hooks_.after_dispatch;
      case exchange::RowHookPlace::kBeforeCombine: return hooks_.before_combine;
      default: return hooks_.after_combine;
    }
  }();
  if (!hook) {
    return rows;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor replaced =
      hook({point.direction, point.chunk, point.num_chunks}, tensor_over(rows));
  if (!replaced.defined()) {
    return rows;
  }
  kept_ = replaced.contiguous();
  return view_of(kept_);
}

}  // namespace coterie::nn
