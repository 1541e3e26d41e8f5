// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/run/kernels/bfloat16.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// A matrix of fp32, bf16 or fp64 with `padding` elements between rows, for tests.
class TypedMatrix {
 public:
  TypedMatrix(std::int64_t rows, std::int64_t columns, DType type, std::int64_t padding = 0)
      : rows_(rows),
        columns_(columns),
        stride_(columns + padding),
        type_(type),
        bytes_(static_cast<std::size_t>(rows * stride_ * size_of(type)), 0) {}

  [[nodiscard]] MatrixView view() { return {bytes_.data(), rows_, columns_, stride_, type_}; }
  [[nodiscard]] ConstMatrixView view() const {
    return {bytes_.data(), rows_, columns_, stride_, type_};
  }

  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const {
    const ConstMatrixView v = view();
    switch (type_) {
      case DType::kFloat64: return v.row<double>(row)[column];
      case DType::kFloat32: return static_cast<double>(v.row<float>(row)[column]);
      default: return static_cast<double>(from_bfloat16(v.row<std::uint16_t>(row)[column]));
    }
  }
  void set(std::int64_t row, std::int64_t column, double value) {
    const MatrixView v = view();
    switch (type_) {
      case DType::kFloat64: v.row<double>(row)[column] = value; break;
      case DType::kFloat32: v.row<float>(row)[column] = static_cast<float>(value); break;
      default: v.row<std::uint16_t>(row)[column] = to_bfloat16(static_cast<float>(value)); break;
    }
  }

  /// Every byte 0xff: a NaN in every type, in the padding too.
  void poison() { bytes_.assign(bytes_.size(), 0xff); }

  /// Normal numbers in all elements; the padding becomes NaN.
  void fill_normal(Random& random, double scale = 1.0) {
    poison();
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        set(r, c, scale * random.normal());
      }
    }
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] bool same_bits(const TypedMatrix& other) const { return bytes_ == other.bytes_; }

  /// Whether nothing was written between the rows since poison().
  [[nodiscard]] bool padding_is_poison() const {
    const auto size = static_cast<std::size_t>(size_of(type_));
    const auto stride = static_cast<std::size_t>(stride_) * size;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows_); ++r) {
      for (std::size_t b = static_cast<std::size_t>(columns_) * size; b < stride; ++b) {
        if (bytes_[r * stride + b] != 0xff) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t stride_;
  DType type_;
  std::vector<unsigned char> bytes_;
};

}  // namespace coterie::kernels
