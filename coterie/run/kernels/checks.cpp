// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/checks.hpp"

#include <string>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/bfloat16.hpp"

namespace coterie::kernels {

const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::kFloat32: return "float32";
    case DType::kBfloat16: return "bfloat16";
    case DType::kFloat16: return "float16";
    case DType::kInt32: return "int32";
    case DType::kFloat64: return "float64";
    case DType::kFloat8E4M3: return "float8_e4m3";
  }
  return "unknown";
}

void require_matrix(const char* operation, const char* argument, const ConstMatrixView& view) {
  COTERIE_REQUIRE(view.rows >= 0 && view.columns >= 0, operation, ": ", argument, " has shape [",
                  view.rows, ", ", view.columns, "]");
  COTERIE_REQUIRE(
      view.type == DType::kFloat32 || view.type == DType::kBfloat16 || view.type == DType::kFloat64,
      operation, ": ", argument, " is ", name_of(view.type),
      "; expected float32, bfloat16 or float64");
  COTERIE_REQUIRE(view.rows <= 1 || view.row_stride >= view.columns, operation, ": ", argument,
                  " has row stride ", view.row_stride, ", less than its ", view.columns,
                  " columns");
  COTERIE_REQUIRE(view.rows == 0 || view.columns == 0 || view.data != nullptr, operation, ": ",
                  argument, " [", view.rows, ", ", view.columns, "] is a null pointer");
}

void require_precision(const char* operation, const char* argument, const ConstMatrixView& view,
                       bool fp64) {
  COTERIE_REQUIRE((view.type == DType::kFloat64) == fp64, operation, ": ", argument, " is ",
                  name_of(view.type), "; ",
                  fp64 ? "expected float64 as the others" : "float64 does not mix with the others");
}

void require_shape(const char* operation, const char* argument, const ConstMatrixView& view,
                   std::int64_t rows, std::int64_t columns) {
  COTERIE_REQUIRE(view.rows == rows && view.columns == columns, operation, ": ", argument,
                  " has shape [", view.rows, ", ", view.columns, "]; expected [", rows, ", ",
                  columns, "]");
}

void require_column(const char* operation, const char* argument, const ConstMatrixView& view,
                    std::int64_t num_rows, bool fp64) {
  require_matrix(operation, argument, view);
  require_shape(operation, argument, view, num_rows, 1);
  require_precision(operation, argument, view, fp64);
  COTERIE_REQUIRE(view.type != DType::kBfloat16, operation, ": ", argument,
                  " is bfloat16; expected float32 or float64");
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

void require_expert_matrices(const ExpertMatrices& experts, std::int64_t rows, std::int64_t columns,
                             DType others) {
  const std::string count = std::string("number of experts in ") + experts.argument;
  require_equal(
      experts.operation, count.c_str(), static_cast<std::int64_t>(experts.matrices.size()),
      "expert_offsets' number of experts", static_cast<std::int64_t>(experts.offsets.size()) - 1);
  for (std::size_t expert = 0; expert < experts.matrices.size(); ++expert) {
    if (experts.offsets[expert + 1] == experts.offsets[expert]) {
      continue;
    }
    const std::string name = std::string(experts.argument) + "[" + std::to_string(expert) + "]";
    require_shape(experts.operation, name.c_str(), experts.matrices[expert], rows, columns);
    require_matrix(experts.operation, name.c_str(), experts.matrices[expert]);
    require_precision(experts.operation, name.c_str(), experts.matrices[expert],
                      others == DType::kFloat64);
  }
}

double load_element(const ConstMatrixView& view, std::int64_t row, std::int64_t column) {
  switch (view.type) {
    case DType::kFloat64: return view.row<double>(row)[column];
    case DType::kFloat32: return static_cast<double>(view.row<float>(row)[column]);
    default: return static_cast<double>(from_bfloat16(view.row<std::uint16_t>(row)[column]));
  }
}

void store_element(const MatrixView& view, std::int64_t row, std::int64_t column, double value) {
  switch (view.type) {
    case DType::kFloat64: view.row<double>(row)[column] = value; break;
    case DType::kFloat32: view.row<float>(row)[column] = static_cast<float>(value); break;
    default: view.row<std::uint16_t>(row)[column] = to_bfloat16(static_cast<float>(value)); break;
  }
}

}  // namespace coterie::kernels
