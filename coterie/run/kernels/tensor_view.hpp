// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace coterie::kernels {

/// Element types that the kernels know.
enum class DType : std::uint8_t {
  kFloat32,
  kBfloat16,
  kFloat16,
  kInt32,
  kFloat64,
  kFloat8E4M3,  ///< named for block-scaled weights to come; no operation takes it yet
};

/// "float32", "bfloat16", ...
const char* name_of(DType type) noexcept;

/// Bytes of one element.
constexpr std::int64_t size_of(DType type) {
  switch (type) {
    case DType::kFloat64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat8E4M3: return 1;
    default: return 2;
  }
}

/// A matrix somewhere in memory that belongs to somebody else: `rows` rows of `columns` elements,
/// neighbours in a row adjacent, rows `row_stride` elements apart. Offsets are 64-bit throughout.
struct MatrixView {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  DType type = DType::kFloat32;

  template <typename T>
  [[nodiscard]] T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * row_stride;
  }
};

/// As MatrixView, read only.
struct ConstMatrixView {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  DType type = DType::kFloat32;

  ConstMatrixView() = default;
  ConstMatrixView(const void* d, std::int64_t r, std::int64_t c, std::int64_t stride, DType t)
      : data(d), rows(r), columns(c), row_stride(stride), type(t) {}
  ConstMatrixView(
      const MatrixView& v)  // NOLINT(google-explicit-constructor): a view narrows freely
      : data(v.data), rows(v.rows), columns(v.columns), row_stride(v.row_stride), type(v.type) {}

  template <typename T>
  [[nodiscard]] const T* row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * row_stride;
  }
};

}  // namespace coterie::kernels
