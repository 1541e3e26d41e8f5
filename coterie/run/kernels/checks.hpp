// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// kBadInput naming operation and argument unless the view is sound: sizes not negative, row stride
/// at least the number of columns, fp32, bf16 or fp64, and not null where it has elements.
void require_matrix(const char* operation, const char* argument, const ConstMatrixView& view);

/// kBadInput unless the view is fp64 exactly where `fp64` is set.
void require_precision(const char* operation, const char* argument, const ConstMatrixView& view,
                       bool fp64);

/// kBadInput unless the view, which is [num_rows, 1], is sound, fp64 exactly where `fp64` is set,
/// and not bf16.
void require_column(const char* operation, const char* argument, const ConstMatrixView& view,
                    std::int64_t num_rows, bool fp64);

/// kBadInput unless the view is [rows, columns].
void require_shape(const char* operation, const char* argument, const ConstMatrixView& view,
                   std::int64_t rows, std::int64_t columns);

/// kBadInput unless `value` == `wanted`; the message names both arguments.
void require_equal(const char* operation, const char* argument, std::int64_t value,
                   const char* wanted_argument, std::int64_t wanted);

/// kBadInput unless each index lies in [-1, num_rows).
void require_rows(const char* operation, const char* argument, std::span<const std::int32_t> index,
                  std::int64_t num_rows);

/// kBadInput unless the limits start at 0, never fall and end at num_rows.
void require_offsets(const char* operation, const char* argument,
                     std::span<const std::int64_t> offsets, std::int64_t num_rows);

/// One matrix an expert, and how many rows each expert has to work on.
struct ExpertMatrices {
  const char* operation;
  const char* argument;
  std::span<const ConstMatrixView> matrices;
  std::span<const std::int64_t> offsets;
};

/// kBadInput unless the matrices of all experts that have rows are sound, [rows, columns], and fp64
/// exactly where `others` is.
void require_expert_matrices(const ExpertMatrices& experts, std::int64_t rows, std::int64_t columns,
                             DType others);

/// Element `column` of row `row`; exact.
double load_element(const ConstMatrixView& view, std::int64_t row, std::int64_t column);

/// Rounds a value to the view's type and stores it.
void store_element(const MatrixView& view, std::int64_t row, std::int64_t column, double value);

}  // namespace coterie::kernels
