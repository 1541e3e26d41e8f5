// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "coterie/run/kernels/kernels.hpp"

/// Private to the room: tensors as the kernels' matrices and back.
namespace coterie::nn {

/// Types that both sides know; kUnsupported names another.
kernels::DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(kernels::DType type);

/// The memory of a contiguous CPU tensor of two dimensions; of one dimension as a single row. The
/// tensor must stay alive. kInternal if it is not contiguous.
kernels::ConstMatrixView view_of(const at::Tensor& tensor);
kernels::MatrixView mutable_view_of(const at::Tensor& tensor);

/// A tensor over rows without gaps, which must stay alive.
at::Tensor tensor_over(const kernels::ConstMatrixView& rows);

}  // namespace coterie::nn
