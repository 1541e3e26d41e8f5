// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// "float32", "bfloat16", ...
const char* name_of(DType type) noexcept;

/// kBadInput naming operation and argument unless the view is sound: sizes not negative, row stride
/// at least the number of columns, fp32 or bf16, and not null where it has elements.
void require_matrix(const char* operation, const char* argument, const ConstMatrixView& view);

/// kBadInput unless `value` == `wanted`; the message names both arguments.
void require_equal(const char* operation, const char* argument, std::int64_t value,
                   const char* wanted_argument, std::int64_t wanted);

/// kBadInput unless each index lies in [-1, num_rows).
void require_rows(const char* operation, const char* argument, std::span<const std::int32_t> index,
                  std::int64_t num_rows);

/// kBadInput unless the limits start at 0, never fall and end at num_rows.
void require_offsets(const char* operation, const char* argument,
                     std::span<const std::int64_t> offsets, std::int64_t num_rows);

/// Element `column` of row `row` as fp32.
float load_element(const ConstMatrixView& view, std::int64_t row, std::int64_t column);

/// Rounds a value to the view's type and stores it.
void store_element(const MatrixView& view, std::int64_t row, std::int64_t column, float value);

}  // namespace coterie::kernels
