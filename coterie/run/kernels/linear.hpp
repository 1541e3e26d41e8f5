// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// y = x w^T: x [T, K], w [N, K], y [T, N], each fp32 or bf16 on its own, sums in fp32. Router
/// logits are this with an fp32 y. T, K or N may be 0 (K = 0 writes zeros). y must not overlap x or
/// w.
///
/// Order of summation, so that a row's bits never depend on T or threads: lane l of the back end's
/// vectors sums k = l, l + L, l + 2L ... upwards, then the lanes are added in one fixed tree.
///
/// kBadInput for shapes that do not fit, null pointers, other types.
void linear(const ConstMatrixView& x, const ConstMatrixView& w, const MatrixView& y,
            const Execution& execution = {});

}  // namespace coterie::kernels
