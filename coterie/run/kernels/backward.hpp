// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/experts_backward.hpp"
#include "coterie/run/kernels/weight_gradient.hpp"

/// Private to the room: the backward operations once their arguments are checked.
namespace coterie::kernels {

/// Plain loops. Towards inputs they sum in double; the weight gradient is the chain of fused
/// multiply-adds that weight_gradient.hpp describes, so that the law of cuts holds here too.
void grouped_down_backward_reference(const GroupedDownBackward& task, Threads& threads);
void grouped_up_backward_reference(const GroupedUpBackward& task, Threads& threads);
void grouped_weight_gradient_reference(const GroupedWeightGradient& task, Threads& threads);

/// Vector kernels of `backend`, which must be available and not kReference.
void grouped_down_backward_cpu(const GroupedDownBackward& task, Backend backend, Threads& threads);
void grouped_up_backward_cpu(const GroupedUpBackward& task, Backend backend, Threads& threads);
void grouped_weight_gradient_cpu(const GroupedWeightGradient& task, Backend backend,
                                 Threads& threads);

/// Run what `backend` (resolved) asks for.
void run_up_backward(const GroupedUpBackward& task, Backend backend, Threads& threads);
void run_weight_gradient(const GroupedWeightGradient& task, Backend backend, Threads& threads);
void run_bias_gradient(const GroupedBiasGradient& task, Backend backend, Threads& threads);

}  // namespace coterie::kernels
