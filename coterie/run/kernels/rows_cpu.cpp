// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "coterie/run/kernels/bfloat16.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {
namespace {

constexpr std::int64_t kBlock = 512;  // columns summed at a time, in the first-level cache

constexpr std::size_t kChains = 8;  // of a dot product

inline double widened(double v) {
  return v;
}
inline double widened(float v) {
  return static_cast<double>(v);
}
inline double widened(std::uint16_t v) {
  return static_cast<double>(from_bfloat16(v));
}
inline double as_sum(double v, double) {
  return v;
}
inline float as_sum(float v, float) {
  return v;
}
inline float as_sum(std::uint16_t v, float) {
  return from_bfloat16(v);
}

/// sums[i] += weight * values[i]; a product, rounded, and an addition: the compiler may not fuse
/// them (-ffp-contract=off).
template <class T, class Sum>
void add_row(const T* values, Sum weight, std::int64_t count, Sum* sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] += weight * as_sum(values[i], Sum{});
  }
}

void store_sums(const float* sums, std::int64_t count, const MatrixView& to, std::int64_t to_row,
                std::int64_t column) {
  if (to.type == DType::kFloat32) {
    std::memcpy(to.row<float>(to_row) + column, sums, static_cast<std::size_t>(count) * 4);
    return;
  }
  std::transform(sums, sums + count, to.row<std::uint16_t>(to_row) + column, to_bfloat16);
}
void store_sums(const double* sums, std::int64_t count, const MatrixView& to, std::int64_t to_row,
                std::int64_t column) {
  std::memcpy(to.row<double>(to_row) + column, sums, static_cast<std::size_t>(count) * 8);
}

/// Calls body with a pointer to row `row` of its own type.
template <class Body>
auto with_row(const ConstMatrixView& view, std::int64_t row, const Body& body) {
  switch (view.type) {
    case DType::kFloat64: return body(view.row<double>(row));
    case DType::kFloat32: return body(view.row<float>(row));
    default: return body(view.row<std::uint16_t>(row));
  }
}

/// Copies values into another type.
template <class T>
void convert_row(const T* from, std::int64_t count, const MatrixView& to, std::int64_t to_row) {
  switch (to.type) {
    case DType::kFloat64:
      std::transform(from, from + count, to.row<double>(to_row), [](T v) { return widened(v); });
      break;
    case DType::kFloat32:
      std::transform(from, from + count, to.row<float>(to_row),
                     [](T v) { return static_cast<float>(widened(v)); });
      break;
    default:
      std::transform(from, from + count, to.row<std::uint16_t>(to_row),
                     [](T v) { return to_bfloat16(static_cast<float>(widened(v))); });
      break;
  }
}

template <class Sum, class T>
void merge_columns(const ConstMatrixView& from, const MergeList& list, const MatrixView& to,
                   std::int64_t to_row, bool add) {
  std::array<Sum, kBlock> sums;
  for (std::int64_t column = 0; column < to.columns; column += kBlock) {
    const std::int64_t count = std::min(kBlock, to.columns - column);
    if (add) {
      std::copy_n(to.row<Sum>(to_row) + column, count, sums.begin());
    } else {
      std::fill_n(sums.begin(), count, Sum{0});
    }
    for (std::size_t j = 0; j < list.rows.size(); ++j) {
      if (list.rows[j] >= 0) {
        add_row(from.row<T>(list.rows[j]) + column, static_cast<Sum>(list.weight(j)), count,
                sums.data());
      }
    }
    store_sums(sums.data(), count, to, to_row, column);
  }
}

template <class A, class B>
double dot(const A* a, const B* b, std::int64_t count) {
  std::array<double, kChains> sums{};
  std::int64_t c = 0;
  for (; c + static_cast<std::int64_t>(kChains) <= count; c += kChains) {
    for (std::size_t lane = 0; lane < kChains; ++lane) {
      sums[lane] += widened(a[c + static_cast<std::int64_t>(lane)]) *
                    widened(b[c + static_cast<std::int64_t>(lane)]);
    }
  }
  for (std::size_t lane = 0; c < count; ++c, ++lane) {
    sums[lane] += widened(a[c]) * widened(b[c]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

std::vector<const void*> row_pointers(const ConstMatrixView& matrix,
                                      std::span<const std::int32_t> row_of, std::int64_t num_rows) {
  std::vector<const void*> rows(static_cast<std::size_t>(num_rows));
  const auto* const base = static_cast<const char*>(matrix.data);
  const std::int64_t stride = matrix.row_stride * size_of(matrix.type);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t row = row_of.empty() ? static_cast<std::int64_t>(r) : row_of[r];
    rows[r] = row < 0 ? nullptr : base + row * stride;
  }
  return rows;
}

void copy_row_cpu(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                  std::int64_t to_row) {
  if (to.columns == 0) {
    return;
  }
  const auto bytes = static_cast<std::size_t>(to.columns * size_of(to.type));
  auto* const target = to.row<char>(0) + to_row * to.row_stride * size_of(to.type);
  if (from_row < 0) {
    std::memset(target, 0, bytes);
  } else if (from.type == to.type) {
    std::memcpy(target, from.row<char>(0) + from_row * from.row_stride * size_of(from.type), bytes);
  } else {
    with_row(from, from_row,
             [&](const auto* values) { convert_row(values, to.columns, to, to_row); });
  }
}

void merge_row_cpu(const ConstMatrixView& from, const MergeList& list, const MatrixView& to,
                   std::int64_t to_row, bool add) {
  switch (from.type) {
    case DType::kFloat64: merge_columns<double, double>(from, list, to, to_row, add); break;
    case DType::kFloat32: merge_columns<float, float>(from, list, to, to_row, add); break;
    default: merge_columns<float, std::uint16_t>(from, list, to, to_row, add); break;
  }
}

double dot_row_cpu(const ConstMatrixView& a, std::int64_t a_row, const ConstMatrixView& b,
                   std::int64_t b_row) {
  if (a_row < 0 || b_row < 0) {
    return 0.0;
  }
  return with_row(a, a_row, [&](const auto* x) {
    return with_row(b, b_row, [&](const auto* y) { return dot(x, y, a.columns); });
  });
}

}  // namespace coterie::kernels
