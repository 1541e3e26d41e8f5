// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// Gradients of the experts' weight matrices: for grouped_up a = grad_pre, b = x with its row list;
/// for grouped_down a = the rows' gradients, b = hidden.
struct GroupedWeightGradient {
  ConstMatrixView a;                             ///< [R, M]; with a_rows [any, M]
  std::span<const std::int32_t> a_rows;          ///< [R] rows of a; -1: the row counts for nothing
  ConstMatrixView b;                             ///< [R, N]; with b_rows [any, N]
  std::span<const std::int32_t> b_rows;          ///< [R] rows of b, likewise
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const MatrixView> gradients;         ///< out [E] of [M, N]; bf16 only if overwritten
  bool accumulate = false;                       ///< add to what gradients hold (fp32 or fp64)
};

/// gradients[e] (+)= sum over the rows r of expert e of a[a_rows[r]]^T b[b_rows[r]].
///
/// Each element is one chain of multiply-adds over the rows in the given order, in fp32 (fp64 for
/// fp64), starting at zero or at what is there. So cutting the rows into consecutive calls with
/// `accumulate` gives the bits of one call; threads do not matter. bf16 gradients are rounded once.
/// avx512_bf16 takes denormal operands of bf16 products and denormal sums as zero.
/// An expert without rows: exact zeros, or untouched with `accumulate`. A gradient whose data is
/// null is skipped; so no expert needs one that it does not train.
/// kBadInput names the argument, the expert and the value.
void grouped_weight_gradient(const GroupedWeightGradient& task, const Execution& execution = {});

/// Gradients of the experts' biases.
struct GroupedBiasGradient {
  ConstMatrixView a;                             ///< [R, M]; with a_rows [any, M]
  std::span<const std::int32_t> a_rows;          ///< [R] rows of a; -1: the row counts for nothing
  ConstMatrixView weights;                       ///< [R, 1], fp32 or fp64; data null: all 1
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const MatrixView> gradients;         ///< out [E] of [1, M]
  bool accumulate = false;
};

/// gradients[e] (+)= sum over the rows r of expert e of weights[r] * a[a_rows[r]]: each term is
/// rounded, then added, in the given order; all back ends give the same bits. Otherwise as
/// grouped_weight_gradient.
void grouped_bias_gradient(const GroupedBiasGradient& task, const Execution& execution = {});

}  // namespace coterie::kernels
