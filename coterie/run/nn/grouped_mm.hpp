// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

/// Private to the room: products of several matrices at once.
namespace coterie::nn {

/// y[r] = w[e] a[r] for rows [offsets[e - 1], offsets[e]) of each e, offsets[-1] = 0. a [R, K], w
/// [E, N, K], offsets [E] int32 on the device of a, offsets[E - 1] = R; y [R, N]. By torch's
/// _grouped_mm where it has the type and the alignment (bf16, rows of a multiple of 16 bytes), else
/// by a loop that reads the offsets on the host. Differentiable in a and w.
at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& w, const at::Tensor& offsets);

/// Whether torch's own kernel computes a product of these operands.
bool is_torch_grouped_mm(const at::Tensor& a, const at::Tensor& w);

}  // namespace coterie::nn
