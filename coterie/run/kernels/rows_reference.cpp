// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {

void copy_row_reference(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                        std::int64_t to_row) {
  for (std::int64_t c = 0; c < to.columns; ++c) {
    store_element(to, to_row, c, from_row < 0 ? 0.0F : load_element(from, from_row, c));
  }
}

void merge_row_reference(const ConstMatrixView& from, std::span<const std::int32_t> rows,
                         std::span<const float> weights, const MatrixView& to, std::int64_t to_row,
                         bool add) {
  for (std::int64_t c = 0; c < to.columns; ++c) {
    float sum = add ? load_element(to, to_row, c) : 0.0F;
    for (std::size_t j = 0; j < rows.size(); ++j) {
      if (rows[j] >= 0) {
        const float weight = weights.empty() ? 1.0F : weights[j];
        const float term = weight * load_element(from, rows[j], c);
        sum = sum + term;
      }
    }
    store_element(to, to_row, c, sum);
  }
}

}  // namespace coterie::kernels
