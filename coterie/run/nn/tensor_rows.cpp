// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/tensor_rows.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"

namespace coterie::nn {

kernels::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return kernels::DType::kFloat64;
    case at::kFloat: return kernels::DType::kFloat32;
    case at::kBFloat16: return kernels::DType::kBfloat16;
    case at::kHalf: return kernels::DType::kFloat16;
    case at::kInt: return kernels::DType::kInt32;
    case at::kFloat8_e4m3fn: return kernels::DType::kFloat8E4M3;
    default: fail(ErrorCode::kUnsupported, "rows of type ", at::toString(type));
  }
}

at::ScalarType scalar_type_of(kernels::DType type) {
  switch (type) {
    case kernels::DType::kFloat64: return at::kDouble;
    case kernels::DType::kFloat32: return at::kFloat;
    case kernels::DType::kBfloat16: return at::kBFloat16;
    case kernels::DType::kFloat16: return at::kHalf;
    case kernels::DType::kInt32: return at::kInt;
    case kernels::DType::kFloat8E4M3: return at::kFloat8_e4m3fn;
  }
  fail(ErrorCode::kInternal, "unknown element type ", static_cast<int>(type));
}

kernels::MatrixView mutable_view_of(const at::Tensor& tensor) {
  COTERIE_CHECK(
      tensor.is_contiguous() && tensor.dim() >= 1 && tensor.dim() <= 2 && tensor.device().is_cpu(),
      "a tensor of shape ", tensor.sizes(), " is no contiguous matrix on the CPU");
  const std::int64_t rows = tensor.dim() == 2 ? tensor.size(0) : 1;
  const std::int64_t columns = tensor.size(-1);
  return {tensor.data_ptr(), rows, columns, columns, dtype_of(tensor.scalar_type())};
}

kernels::ConstMatrixView view_of(const at::Tensor& tensor) {
  COTERIE_CHECK(
      tensor.is_contiguous() && tensor.dim() >= 1 && tensor.dim() <= 2 && tensor.device().is_cpu(),
      "a tensor of shape ", tensor.sizes(), " is no contiguous matrix on the CPU");
  const std::int64_t rows = tensor.dim() == 2 ? tensor.size(0) : 1;
  const std::int64_t columns = tensor.size(-1);
  return {tensor.const_data_ptr(), rows, columns, columns, dtype_of(tensor.scalar_type())};
}

at::Tensor tensor_over(const kernels::ConstMatrixView& rows) {
  COTERIE_CHECK(rows.rows <= 1 || rows.row_stride == rows.columns, "rows with gaps");
  return at::from_blob(const_cast<void*>(rows.data), {rows.rows, rows.columns},
                       at::TensorOptions(scalar_type_of(rows.type)));
}

}  // namespace coterie::nn
