// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace coterie::gates {

/// Functions whose result for an entry (a row) never depends on where it lies in memory. ATen's own
/// vector code and its code for what is left over round exp and log differently, so that a token's
/// score would change in the last bit with its neighbours. fp32 or fp64, differentiable once; on
/// the CPU in plain loops, elsewhere ATen's.
///
/// 1 / (1 + exp(-z)), any shape.
at::Tensor row_sigmoid(const at::Tensor& z);
/// log(1 + exp(z)), any shape.
at::Tensor row_softplus(const at::Tensor& z);
/// log of the sum of exp of each row: [R, N] to [R, 1]. Each row needs one finite entry or more,
/// and no NaN nor +inf.
at::Tensor row_log_sum_exp(const at::Tensor& z);

/// Rows times a tensor of one entry. Rows that are not finite become NaN and send no gradient, so
/// that they do not spoil the factor's.
at::Tensor scale_rows(const at::Tensor& rows, const at::Tensor& factor);

/// Rows divided by sqrt(|row|^2 + 1e-12): as L2-normalised, and smooth at 0.
at::Tensor unit_rows(const at::Tensor& matrix);

}  // namespace coterie::gates
