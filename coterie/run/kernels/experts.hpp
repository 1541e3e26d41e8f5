// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// What stands between the two products of an expert.
enum class Activation : std::uint8_t {
  kSwiGlu,  ///< silu(gate) * up with silu(v) = v / (1 + exp(-v))
};

/// First half of all experts: gather, product with gate and up, activation.
///
/// Rows are sorted by expert: rows [expert_offsets[e], expert_offsets[e + 1]) belong to expert e.
struct GroupedUp {
  ConstMatrixView x;                             ///< [T, H] fp32 or bf16
  std::span<const std::int32_t> row_of;          ///< [R] rows of x; -1: a row of zeros.
                                                 ///< Empty: R = T, row r is x[r]
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> gate_up;      ///< [E] of [2I, H]: gate rows, then up rows
  MatrixView hidden;                             ///< out: [R, I] fp32 or bf16
  Activation activation = Activation::kSwiGlu;
};

/// hidden[r] = act(gate x[row_of[r]]) * (up x[row_of[r]]). An expert without rows may have a view
/// whose data is null; it is not touched. Summation order as in linear().
/// kBadInput names the argument, the expert and the value.
void grouped_up(const GroupedUp& task, const Execution& execution = {});

/// Second half of all experts.
struct GroupedDown {
  ConstMatrixView hidden;                        ///< [R, I] fp32 or bf16
  std::span<const std::int64_t> expert_offsets;  ///< [E + 1], from 0 up to R
  std::span<const ConstMatrixView> down;         ///< [E] of [H, I]
  MatrixView rows;                               ///< out: [R, H] fp32 or bf16
};

/// rows[r] = down_e hidden[r] for each row r of expert e. Otherwise as grouped_up.
void grouped_down(const GroupedDown& task, const Execution& execution = {});

}  // namespace coterie::kernels
