// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/checks.hpp"

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/bfloat16.hpp"

namespace coterie::kernels {

const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::kFloat32: return "float32";
    case DType::kBfloat16: return "bfloat16";
    case DType::kFloat16: return "float16";
    case DType::kInt32: return "int32";
  }
  return "unknown";
}

void require_matrix(const char* operation, const char* argument, const ConstMatrixView& view) {
  COTERIE_REQUIRE(view.rows >= 0 && view.columns >= 0, operation, ": ", argument, " has shape [",
                  view.rows, ", ", view.columns, "]");
  COTERIE_REQUIRE(view.type == DType::kFloat32 || view.type == DType::kBfloat16, operation, ": ",
                  argument, " is ", name_of(view.type), "; expected float32 or bfloat16");
  COTERIE_REQUIRE(view.rows <= 1 || view.row_stride >= view.columns, operation, ": ", argument,
                  " has row stride ", view.row_stride, ", less than its ", view.columns,
                  " columns");
  COTERIE_REQUIRE(view.rows == 0 || view.columns == 0 || view.data != nullptr, operation, ": ",
                  argument, " [", view.rows, ", ", view.columns, "] is a null pointer");
}

void require_equal(const char* operation, const char* argument, std::int64_t value,
                   const char* wanted_argument, std::int64_t wanted) {
  COTERIE_REQUIRE(value == wanted, operation, ": ", argument, " is ", value, ", but ",
                  wanted_argument, " is ", wanted);
}

void require_rows(const char* operation, const char* argument, std::span<const std::int32_t> index,
                  std::int64_t num_rows) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    COTERIE_REQUIRE(index[i] >= -1 && index[i] < num_rows, operation, ": ", argument, "[", i,
                    "] is ", index[i], ", outside [-1, ", num_rows, ")");
  }
}

void require_offsets(const char* operation, const char* argument,
                     std::span<const std::int64_t> offsets, std::int64_t num_rows) {
  COTERIE_REQUIRE(!offsets.empty(), operation, ": ", argument,
                  " is empty; expected [E + 1] limits");
  COTERIE_REQUIRE(offsets.front() == 0, operation, ": ", argument, "[0] is ", offsets.front(),
                  "; expected 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    COTERIE_REQUIRE(offsets[i] >= offsets[i - 1], operation, ": ", argument, "[", i, "] is ",
                    offsets[i], ", less than the ", offsets[i - 1], " before it");
  }
  COTERIE_REQUIRE(offsets.back() == num_rows, operation, ": ", argument, " ends at ",
                  offsets.back(), ", but there are ", num_rows, " rows");
}

float load_element(const ConstMatrixView& view, std::int64_t row, std::int64_t column) {
  return view.type == DType::kFloat32 ? view.row<float>(row)[column]
                                      : from_bfloat16(view.row<std::uint16_t>(row)[column]);
}

void store_element(const MatrixView& view, std::int64_t row, std::int64_t column, float value) {
  if (view.type == DType::kFloat32) {
    view.row<float>(row)[column] = value;
  } else {
    view.row<std::uint16_t>(row)[column] = to_bfloat16(value);
  }
}

}  // namespace coterie::kernels
