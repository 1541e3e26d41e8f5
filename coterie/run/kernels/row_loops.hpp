// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: one row of gather, scatter and merge. The twins give equal bits.
namespace coterie::kernels {

/// Row `from_row` of from (-1: zeros) into row `to_row` of to.
void copy_row_reference(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                        std::int64_t to_row);
void copy_row_cpu(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                  std::int64_t to_row);

/// A pointer for each of `num_rows` rows: row row_of[r] of the matrix (row r if row_of is empty),
/// null for -1.
std::vector<const void*> row_pointers(const ConstMatrixView& matrix,
                                      std::span<const std::int32_t> row_of, std::int64_t num_rows);

/// What is added up for one row. At most one of the weights is there; neither: all 1.
struct MergeList {
  std::span<const std::int32_t> rows;
  std::span<const float> weights;
  std::span<const double> fp64_weights;

  /// Entries [first, last).
  [[nodiscard]] MergeList part(std::int64_t first, std::int64_t last) const {
    const auto at = static_cast<std::size_t>(first);
    const auto count = static_cast<std::size_t>(last - first);
    return {rows.subspan(at, count), weights.empty() ? weights : weights.subspan(at, count),
            fp64_weights.empty() ? fp64_weights : fp64_weights.subspan(at, count)};
  }
  [[nodiscard]] double weight(std::size_t entry) const {
    return !weights.empty()        ? static_cast<double>(weights[entry])
           : !fp64_weights.empty() ? fp64_weights[entry]
                                   : 1.0;
  }
};

/// The sum of a list's rows of from into row `to_row` of to.
void merge_row_reference(const ConstMatrixView& from, const MergeList& list, const MatrixView& to,
                         std::int64_t to_row, bool add);
void merge_row_cpu(const ConstMatrixView& from, const MergeList& list, const MatrixView& to,
                   std::int64_t to_row, bool add);

/// Row a_row of a times row b_row of b; zero if either is -1.
double dot_row_reference(const ConstMatrixView& a, std::int64_t a_row, const ConstMatrixView& b,
                         std::int64_t b_row);
double dot_row_cpu(const ConstMatrixView& a, std::int64_t a_row, const ConstMatrixView& b,
                   std::int64_t b_row);

}  // namespace coterie::kernels
