// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

namespace coterie::kernels {

/// How a router's logits become expert ids and weights.
struct GateOptions {
  int top_k = 1;
  bool renormalise = false;  ///< `norm_topk_prob`: the k weights are divided by their sum
};

/// Softmax over all experts (fp32 terms), then the top_k experts by logit, ties to the lowest id.
///
/// logits fp32 [T, E]; ids int32 [T, top_k] and weights fp32 [T, top_k], both by descending logit.
/// Returns -1, or the index of the first bad token: one with a NaN or +inf among its logits, or
/// with -inf everywhere. All bad tokens get ids -1 and weights 0; other tokens do not feel them.
/// kBadInput if top_k is outside [1, E] or shapes do not fit.
std::int64_t topk_gate(const ConstMatrixView& logits, const GateOptions& options,
                       std::span<std::int32_t> ids, std::span<float> weights,
                       const Execution& execution = {});

}  // namespace coterie::kernels
