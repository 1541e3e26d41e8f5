// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::gates {

/// Logits [T, E] = x [T, H] weight^T [E, H], differentiable in both, in weight's type.
///
/// weight fp32 or fp64; x any floating point type no wider than it (kBadInput naming `name`
/// otherwise: fp32 logits of an fp64 model would hide the router's rounding). On the CPU a row's
/// bits, forward and backward, depend on that row and weight alone (kernels::linear); the gradient
/// of weight has one fixed order of sums over the rows for any number of threads. Elsewhere ATen's
/// product in weight's type, which promises neither.
///
/// Rows whose logits are not finite get gradient 0 and add nothing to weight's: one bad token
/// spoils no other.
at::Tensor router_linear(const at::Tensor& x, const at::Tensor& weight, const std::string& name,
                         const kernels::Execution& execution = {});

}  // namespace coterie::gates
