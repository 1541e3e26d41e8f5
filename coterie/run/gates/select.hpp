// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::gates {

/// Columns of the k highest scores of each row, descending, ties to the lowest column: int64 [R,
/// k]. scores [R, N] fp32 or fp64 without NaN (kInternal); -inf is a score like others, the lowest.
/// k in [0, N]. No gradient.
at::Tensor select_top_k(const at::Tensor& scores, std::int64_t k,
                        const kernels::Execution& execution = {});

/// As select_top_k by a stable sort in ATen: the reference, and what runs beside CPUs.
at::Tensor select_top_k_reference(const at::Tensor& scores, std::int64_t k);

}  // namespace coterie::gates
