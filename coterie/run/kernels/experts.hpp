// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/activation.hpp"
#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

// Types: fp32 and bf16 mix freely and are summed in fp32; fp64 stands alone: if one matrix of a
// task is fp64, all are.

/// First half of all experts: gather, product with gate and up, bias, activation.
///
/// Rows are sorted by expert: rows [expert_offsets[e], expert_offsets[e + 1]) belong to expert e.
/// P is 2I for kSwiGlu, else I.
struct GroupedUp {
  ConstMatrixView x;                             ///< [T, H]
  std::span<const std::int32_t> row_of;          ///< [R] rows of x; -1: the hidden row is zeros.
                                                 ///< Empty: R = T, row r is x[r]; or R = 0
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> gate_up;      ///< [E] of [P, H]: gate rows, then up rows
  MatrixView hidden;                             ///< out: [R, I]
  Activation activation = Activation::kSwiGlu;
  std::span<const ConstMatrixView> bias = {};  ///< [E] of [1, P]; empty: none
  MatrixView pre =
      {};  ///< out, unless its data is null: [R, P], what the activation was given, rounded
           ///< to its type. A -1 row of x gives zeros. hidden's bits do not depend on it
};

/// hidden[r] = activation(gate_up_e x[row_of[r]] + bias_e) for each row r of expert e. An expert
/// without rows may have a view whose data is null; it is not touched. Summation order as in
/// linear(); the bias is added last.
/// kBadInput names the argument, the expert and the value.
void grouped_up(const GroupedUp& task, const Execution& execution = {});

/// Second half of all experts.
struct GroupedDown {
  ConstMatrixView hidden;                        ///< [R, I]
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> down;         ///< [E] of [H, I]
  MatrixView rows;                               ///< out: [R, H]
  std::span<const ConstMatrixView> bias = {};    ///< [E] of [1, H]; empty: none
};

/// rows[r] = down_e hidden[r] + bias_e for each row r of expert e. Otherwise as grouped_up.
void grouped_down(const GroupedDown& task, const Execution& execution = {});

}  // namespace coterie::kernels
