// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace coterie::models {

/// Sum over tokens of -log softmax(x w^T)[target], natural logarithm, a scalar in fp32 or fp64:
/// x [T, H], w [V, H] of one type, targets int64 [T], -100: no target. Gradients of x and w.
///
/// `chunk` rows at a time, so that [T, V] is never there: each chunk's gradients are formed in the
/// forward pass, while its logits are at hand (as in Liger-Kernel, arXiv:2410.10989, section 3.2),
/// and scaled in the backward pass; logits are computed once. Softmax and sums are fp32 (fp64 for
/// fp64). Without gradient mode only the loss is computed. `reference`: all logits at once, by
/// ATen's own log_softmax.
at::Tensor cross_entropy_sum(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                             std::int64_t chunk, bool reference = false);

inline constexpr std::int64_t kNoTarget = -100;

}  // namespace coterie::models
