// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include "coterie/models/model_config.hpp"
#include "coterie/models/weights.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

/// Cosines and sines of the rotary embedding for positions 0, 1, ...: both [positions, head_dim]
/// (the two halves equal), fp32.
struct RotaryTable {
  at::Tensor cosines;
  at::Tensor sines;
};
RotaryTable make_rotary_table(const ModelConfig& config, std::int64_t num_positions);

/// x w^T + bias: x [T, K] fp32, w [N, K] -> [T, N] fp32, by kernels::linear, so that a row's bits
/// do not depend on the others.
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                        const kernels::Execution& execution);

/// x / sqrt(mean(x^2) + eps) * weight along the last axis, fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Causal self-attention of one sequence alone: x [T, H] (normalised) -> [T, H]. Queries are taken
/// in blocks, so memory grows with T, not T^2. Bits depend on this sequence only.
at::Tensor attend(const at::Tensor& x, const LayerWeights& weights, const ModelConfig& config,
                  const RotaryTable& rotary, const kernels::Execution& execution);

}  // namespace coterie::models
