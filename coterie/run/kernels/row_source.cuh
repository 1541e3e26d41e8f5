// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/checks_cuda.hpp"

/// Private to the room: rows that lie in several matrices and are numbered through, such as a
/// device's own token rows followed by the rows that each peer has sent.
namespace coterie::kernels::cuda {

struct RowSource {
  int count = 1;
  int first[kMaxSources] = {};  // number of the first row of each; ascending
  const char* data[kMaxSources] = {};
  std::int64_t stride_bytes[kMaxSources] = {};

  /// Where row `row` begins; it must exist.
  __device__ const char* row(std::int64_t row) const {
    int i = 0;
    while (i + 1 < count && row >= first[i + 1]) {
      ++i;
    }
    return data[i] + (row - first[i]) * stride_bytes[i];
  }
};

/// Rows to write. No data: nothing is written.
struct RowTarget {
  char* data = nullptr;
  std::int64_t stride_bytes = 0;

  template <typename T>
  __device__ T* row(std::int64_t row) const {
    return reinterpret_cast<T*>(data + row * stride_bytes);
  }
};

inline RowTarget row_target(const MatrixView& view) {
  return {static_cast<char*>(view.data), view.row_stride * size_of(view.type)};
}

/// `x`, then `more`. kBadInput where they differ in columns or type, or hold 2^31 rows or more.
inline RowSource row_source(const char* operation, const char* argument, const ConstMatrixView& x,
                            std::span<const ConstMatrixView> more) {
  require_between(operation, join_message("matrices after ", argument).c_str(),
                  static_cast<std::int64_t>(more.size()), 0, kMaxSources - 1);
  RowSource source;
  std::int64_t rows = 0;
  source.count = 0;
  const auto add = [&](const ConstMatrixView& view) {
    COTERIE_REQUIRE(view.columns == x.columns && view.type == x.type, operation, ": matrix ",
                    source.count, " of ", argument, " has ", view.columns,
                    " columns or a type that differs from the first, which has ", x.columns);
    if (view.rows > 0) {
      require_pointer(operation, argument, view.data);
      require_aligned(operation, argument, view.data, view.row_stride * size_of(view.type));
    }
    source.first[source.count] = static_cast<int>(rows);
    source.data[source.count] = static_cast<const char*>(view.data);
    source.stride_bytes[source.count++] = view.row_stride * size_of(view.type);
    rows += view.rows;
    require_between(operation, join_message("rows of ", argument).c_str(), rows, 0, INT32_MAX);
  };
  add(x);
  for (const ConstMatrixView& view : more) {
    add(view);
  }
  return source;
}

}  // namespace coterie::kernels::cuda
