// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "coterie/run/nn/hooks.hpp"

/// Private to the room.
namespace coterie::nn {

/// A user's middle hooks as the exchange calls them.
class TensorRowHooks final : public exchange::RowHooks {
 public:
  explicit TensorRowHooks(const Hooks& hooks) : hooks_(hooks) {}
  kernels::ConstMatrixView replace(const exchange::RowHookPoint& point,
                                   kernels::ConstMatrixView rows) override;

 private:
  const Hooks& hooks_;
  at::Tensor kept_;  // what the last hook returned
};

}  // namespace coterie::nn
