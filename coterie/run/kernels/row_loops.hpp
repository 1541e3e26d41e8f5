// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: one row of gather, scatter and merge. The twins give equal bits.
namespace coterie::kernels {

/// Row `from_row` of from (-1: zeros) into row `to_row` of to.
void copy_row_reference(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                        std::int64_t to_row);
void copy_row_cpu(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                  std::int64_t to_row);

/// Weighted sum of `rows` of from (weights empty: all 1) into row `to_row` of to.
void merge_row_reference(const ConstMatrixView& from, std::span<const std::int32_t> rows,
                         std::span<const float> weights, const MatrixView& to, std::int64_t to_row,
                         bool add);
void merge_row_cpu(const ConstMatrixView& from, std::span<const std::int32_t> rows,
                   std::span<const float> weights, const MatrixView& to, std::int64_t to_row,
                   bool add);

}  // namespace coterie::kernels
