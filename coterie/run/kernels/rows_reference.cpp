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

namespace {

template <class Sum>
Sum merged(const ConstMatrixView& from, const MergeList& list, std::int64_t column, Sum sum) {
  for (std::size_t j = 0; j < list.rows.size(); ++j) {
    if (list.rows[j] >= 0) {
      const Sum term = static_cast<Sum>(list.weight(j)) *
                       static_cast<Sum>(load_element(from, list.rows[j], column));
      sum = sum + term;
    }
  }
  return sum;
}

}  // namespace

void merge_row_reference(const ConstMatrixView& from, const MergeList& list, const MatrixView& to,
                         std::int64_t to_row, bool add) {
  for (std::int64_t c = 0; c < to.columns; ++c) {
    const double start = add ? load_element(to, to_row, c) : 0.0;
    store_element(to, to_row, c,
                  from.type == DType::kFloat64 ? merged<double>(from, list, c, start)
                                               : static_cast<double>(merged<float>(
                                                     from, list, c, static_cast<float>(start))));
  }
}

double dot_row_reference(const ConstMatrixView& a, std::int64_t a_row, const ConstMatrixView& b,
                         std::int64_t b_row) {
  double sum = 0.0;
  for (std::int64_t c = 0; a_row >= 0 && b_row >= 0 && c < a.columns; ++c) {
    sum += load_element(a, a_row, c) * load_element(b, b_row, c);
  }
  return sum;
}

}  // namespace coterie::kernels
