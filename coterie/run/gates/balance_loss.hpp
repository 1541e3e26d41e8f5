// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "coterie/run/gates/options.hpp"
#include "coterie/run/gates/token_batch.hpp"

namespace coterie::gates {

/// What the losses are made of.
struct BalanceInputs {
  at::Tensor ids;            ///< int32 [T, k], -1: none
  at::Tensor logits;         ///< [T, N], rows of tokens that are not usable finite
  at::Tensor probabilities;  ///< [T, E], rows that sum to 1; may be undefined without load_balance
  at::Tensor usable;         ///< bool [T]
  std::int64_t num_experts = 0;
};

/// Auxiliary losses times their coefficients, a scalar in the type of the logits; undefined if both
/// coefficients are 0. Every sum over tokens runs in fp64 in token order over usable tokens, so
/// that padding changes no bit.
///
/// For sequence s with n_s > 0 usable tokens, c_si of them picking expert i, probabilities p_ti and
/// logits z_tj; S = batch.num_step_sequences (0: the sequences here with n_s > 0):
///
///   load balance  (1/S) sum_s E sum_i (c_si / n_s) (sum_t p_ti / n_s)
///   z-loss        (1/S) sum_s (1/n_s) sum_t (log sum_j exp z_tj)^2
///
/// Load balance is Switch Transformer's eq. (4)-(6), for k picks summed as transformers does (k
/// when balanced; DeepSeek's form is this divided by k). z-loss is ST-MoE's eq. (5). Counts have no
/// gradient.
///
/// BalanceScope::kBatch: the tokens of this call as if they were one sequence, times this call's
/// share of the sequences, S_here / S. Depends on layout and accumulation.
///
/// With batch.sum_shards n_s and c_si are summed over the shards, p and z stay this rank's: the sum
/// of the ranks' results is the loss.
at::Tensor balance_loss(const TokenBatch& batch, const BalanceInputs& inputs,
                        const BalanceOptions& options);

/// Sums of rows a sequence: values [T, N] to fp64 [S, N] over usable tokens, in token order.
/// Differentiable.
at::Tensor sum_by_sequence(const TokenBatch& batch, const at::Tensor& values,
                           const at::Tensor& usable);

/// Balance without a loss (DeepSeek-V3, section 2.1.2; Wang et al. 2024, algorithm 1): bias_i +=
/// rate * sign(mean of step_picks - step_picks_i), in place, without gradient. step_picks [E]
/// counts the whole step, all ranks and micro-batches; call it once a step.
void update_bias(at::Tensor& bias, std::span<const std::int64_t> step_picks, double rate);

}  // namespace coterie::gates
