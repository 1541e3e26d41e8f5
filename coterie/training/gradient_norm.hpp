// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "coterie/run/comm/comm.hpp"
#include "coterie/training/parameter.hpp"

namespace coterie::training {

/// The Euclidean norm of the whole model's gradient: every element of every checkpoint tensor
/// counts once, however many ranks hold it (the first of its replicas counts it). Gradients must
/// have been summed over their replicas. Squares are summed in fp64, a piece at a time in fixed
/// blocks, and the pieces in one order on every rank: where no tensor is cut, the same bits for
/// every layout and number of threads. Collective over `world`; the same on every rank.
double global_gradient_norm(std::span<const Parameter> parameters, comm::Communicator& world);

/// Whether gpu_gradient_norm applies: one process, fp32 or bf16 parameters on a GPU.
bool is_on_one_gpu(std::span<const Parameter> parameters, comm::Communicator& world);

/// The norm and the factor by which gradients are multiplied, as fp32 scalars on the GPU, so that
/// the optimizer's step can be queued before the norm is known. Not finite where the norm is not.
struct GpuNorm {
  at::Tensor norm;
  at::Tensor factor;
};
GpuNorm gpu_gradient_norm(std::span<const Parameter> parameters, double limit);

/// The factor that brings a gradient of norm `norm` to at most `limit`: limit / (norm + 1e-6), at
/// most 1, as torch.nn.utils.clip_grad_norm_ has it; 1 if limit is 0 (off).
double clip_factor(double norm, double limit);

}  // namespace coterie::training
