// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/activation.hpp"
#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// Backward of grouped_down and of the activation before it. R, E, H, I, P and the types as in
/// experts.hpp; outputs whose data is null are not computed.
struct GroupedDownBackward {
  ConstMatrixView grad_rows;             ///< [R, H]; with row_of [any, H]: dL/dy of tokens
  std::span<const std::int32_t> row_of;  ///< [R] rows of grad_rows; -1: a row of zeros. Empty: r
  ConstMatrixView weights;               ///< [R, 1], fp32 (fp64 if all is): routing weight of each
                                         ///< row; data null: all 1 (grad_rows is weighted already)
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> down;         ///< [E] of [H, I]
  std::span<const ConstMatrixView> bias;         ///< [E] of [1, H], for grad_weights only
  ConstMatrixView pre;                           ///< [R, P], saved by grouped_up
  Activation activation = Activation::kSwiGlu;
  MatrixView grad_pre = {};  ///< out [R, P]; may be the memory of pre
  MatrixView hidden = {};    ///< out [R, I]: weight * activation(pre), for down's weight gradient
  MatrixView grad_weights = {};  ///< out [R, 1], fp32 (fp64 if all is)
};

/// With g = grad_rows[row_of[r]], w = weights[r], h = activation(pre[r]) and d = down_e^T g:
///
///   grad_pre[r] = w d * activation'(pre[r])     hidden[r] = w h
///   grad_weights[r] = d . h + g . bias_e        (= g . rows[r], without the rows)
///
/// d sums over H in ascending order, one chain of multiply-adds an element (fp64 for fp64, else
/// fp32), so a row's bits depend on that row and the weights alone. grad_weights adds parts of
/// 48 hidden elements in double, in ascending order. A -1 row gives zeros everywhere.
/// For pre in fp32 (fp64), h has the bits of grouped_up's hidden on the same back end.
/// kBadInput names the argument, the expert and the value.
void grouped_down_backward(const GroupedDownBackward& task, const Execution& execution = {});

/// Backward of grouped_up's product towards its inputs.
struct GroupedUpBackward {
  ConstMatrixView grad_pre;                      ///< [R, P]
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> gate_up;      ///< [E] of [P, H]
  MatrixView grad_x_rows;                        ///< out [R, H], one a row; merge_rows adds them up
};

/// grad_x_rows[r] = gate_up_e^T grad_pre[r], summed over P in ascending order, one chain of
/// multiply-adds an element. Otherwise as grouped_down_backward.
void grouped_up_backward(const GroupedUpBackward& task, const Execution& execution = {});

}  // namespace coterie::kernels
