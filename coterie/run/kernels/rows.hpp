// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// to[i] = from[index[i]]; index -1 writes a row of zeros. from [N, H], to [index.size(), H]; fp32,
/// bf16 and fp64, converted where they differ. kBadInput for an index outside [-1, N).
void gather_rows(const ConstMatrixView& from, std::span<const std::int32_t> index,
                 const MatrixView& to, const Execution& execution = {});

/// to[index[i]] = from[i]; index -1 skips a row. Indices must differ (checked in audit builds).
/// Rows of `to` that no index names keep their values.
void scatter_rows(const ConstMatrixView& from, std::span<const std::int32_t> index,
                  const MatrixView& to, const Execution& execution = {});

/// For each output row, the list of rows to add up.
struct RowLists {
  std::span<const std::int32_t> rows;     ///< row numbers, list after list; -1 adds exact zero
  std::span<const float> weights;         ///< one per row number; empty: all 1
  std::span<const std::int64_t> offsets;  ///< [T + 1] list limits; empty: all lists equally long
  std::span<const double> fp64_weights = {};  ///< instead of weights, for fp64 rows only
};

/// to[t] = sum over the list of t of weight * from[row], in fp32, in list order from zero: each
/// term is rounded, then added (no fused multiply-add), so all back ends give the same bits. A row
/// named by -1 is skipped, whatever its weight. from [N, H] fp32 or bf16; to [T, H] fp32 or bf16
/// (rounded once at the end); or both fp64, summed in fp64. With `add`, the sums are added to what
/// `to` (fp32 or fp64) holds: to[t] + first term ...
void merge_rows(const ConstMatrixView& from, const RowLists& lists, const MatrixView& to,
                bool add = false, const Execution& execution = {});

/// Which rows a dot product pairs.
struct RowPairs {
  std::span<const std::int32_t> a;  ///< [R] rows of a; -1: the result is zero. Empty: row r
  std::span<const std::int32_t> b;  ///< [R] rows of b, likewise
};

/// to[r] = a[pairs.a[r]] . b[pairs.b[r]]: the gradient of a routing weight from dL/dy of the token
/// and the expert's output row. a [N, H], b [M, H] fp32 or bf16 and to [R, 1] fp32, or all fp64.
/// Sums in double, column c in chain c mod 8, the chains then added pairwise; the reference sums in
/// ascending order.
void dot_rows(const ConstMatrixView& a, const ConstMatrixView& b, const RowPairs& pairs,
              const MatrixView& to, const Execution& execution = {});

}  // namespace coterie::kernels
