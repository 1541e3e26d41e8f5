// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie {

/// A dense row-major matrix that owns its values.
template <typename T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t columns, T fill = T{})
      : rows_(rows), columns_(columns), values_(rows * columns, fill) {}

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] std::span<const T> values() const { return values_; }
  [[nodiscard]] std::span<T> values() { return values_; }

  T& operator()(std::size_t row, std::size_t column) {
    COTERIE_DCHECK(row < rows_ && column < columns_, row, ",", column);
    return values_[row * columns_ + column];
  }
  const T& operator()(std::size_t row, std::size_t column) const {
    COTERIE_DCHECK(row < rows_ && column < columns_, row, ",", column);
    return values_[row * columns_ + column];
  }

  [[nodiscard]] std::span<T> row(std::size_t r) {
    return std::span<T>(values_).subspan(r * columns_, columns_);
  }
  [[nodiscard]] std::span<const T> row(std::size_t r) const {
    return std::span<const T>(values_).subspan(r * columns_, columns_);
  }

  void fill(T value) { std::fill(values_.begin(), values_.end(), value); }
  bool operator==(const Matrix&) const = default;

 private:
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  std::vector<T> values_;
};

}  // namespace coterie
