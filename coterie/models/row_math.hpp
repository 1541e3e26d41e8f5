// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include "coterie/models/weights.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

// Functions of rows, fp32. A row's bits depend on that row and the weights alone: not on the other
// rows, their number, or threads.

/// x w^T + bias: x [T, K] (rows may lie apart), w [N, K] -> [T, N], by kernels::linear.
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                        const kernels::Execution& execution);

/// x / sqrt(mean(x^2) + eps) * weight along the last axis; the rows may lie apart. The mean is of
/// 16 interleaved fp32 sums.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// down(silu(gate x) * up x): x [T, H] -> [T, H], by the expert kernels.
at::Tensor apply_mlp(const at::Tensor& x, const MlpWeights& weights,
                     const kernels::Execution& execution);

/// y += sigmoid(x gate^T) * z for each row: x [T, H], gate [1, H], y and z [T, H]. Without a gate
/// (undefined) y += z.
void add_gated(const at::Tensor& y, const at::Tensor& z, const at::Tensor& x,
               const at::Tensor& gate, const kernels::Execution& execution);

}  // namespace coterie::models
