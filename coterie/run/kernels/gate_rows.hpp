// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace coterie::kernels {

/// The gate of one token: ids and weights (both top_k long) from logits. False, and nothing
/// promised about ids and weights, if the logits have no softmax (NaN, +inf, all -inf).
bool gate_row_reference(std::span<const float> logits, bool renormalise,
                        std::span<std::int32_t> ids, std::span<float> weights);

/// As gate_row_reference, in fp32 and without allocation.
bool gate_row_cpu(std::span<const float> logits, bool renormalise, std::span<std::int32_t> ids,
                  std::span<float> weights);

}  // namespace coterie::kernels
