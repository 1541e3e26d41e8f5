// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// y = x w^T: x [T, K], w [N, K], y [T, N], each fp32 or bf16 on its own, sums in fp32; or all
/// three fp64. Router logits are this with an fp32 y. T, K or N may be 0 (K = 0 writes zeros). y
/// must not overlap x or w.
///
/// Order of summation, so that a row's bits never depend on T or threads: lane l of the back end's
/// vectors sums k = l, l + L, l + 2L ... upwards, then the lanes are added in one fixed tree; fp64
/// sums in one chain.
///
/// kBadInput for shapes that do not fit, null pointers, other types.
void linear(const ConstMatrixView& x, const ConstMatrixView& w, const MatrixView& y,
            const Execution& execution = {});

/// Backward of linear. Outputs whose data is null are not computed.
struct LinearBackward {
  ConstMatrixView x;        ///< [T, K]
  ConstMatrixView w;        ///< [N, K]
  ConstMatrixView grad_y;   ///< [T, N]
  MatrixView grad_x;        ///< out [T, K]
  MatrixView grad_w;        ///< out [N, K]; bf16 only if overwritten
  MatrixView grad_bias;     ///< out [1, N]; bf16 only if overwritten
  bool accumulate = false;  ///< grad_w and grad_bias: add to what is there
};

/// grad_x = grad_y w, summed over N in ascending order, and grad_w (+)= grad_y^T x, grad_bias (+)=
/// the sum of grad_y's rows, summed over T in ascending order: one chain an element each, as in
/// grouped_up_backward and grouped_weight_gradient, with their laws. Types as in linear.
void linear_backward(const LinearBackward& task, const Execution& execution = {});

}  // namespace coterie::kernels
