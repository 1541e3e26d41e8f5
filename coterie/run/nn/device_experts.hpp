// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "coterie/run/nn/experts_run.hpp"
#include "coterie/run/nn/moe_layer_options.hpp"

/// Private to the room: experts of one process on its GPU.
namespace coterie::nn {

/// Whether the library's GPU kernels compute these experts forward and backward: bf16, SwiGLU
/// without biases, rows of a multiple of 16 bytes, no shards. Others go by ATen.
bool has_device_kernels(const MoELayerOptions& options);

/// y [T, H] of rows [T, H] with their ids [T, k] int32 and weights [T, k] fp32, all on one GPU, all
/// experts there. One node in the graph; it keeps the rows and the pre-activations, which its
/// backward overwrites: twice through the same graph is an error. Queues work on torch's current
/// stream and waits for nothing. ids are trusted to be in [-1, E) and distinct in a row.
at::Tensor device_experts(const at::Tensor& rows, const at::Tensor& ids, const at::Tensor& weights,
                          const ExpertTensors& experts);

}  // namespace coterie::nn
