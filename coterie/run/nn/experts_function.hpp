// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "coterie/run/nn/experts_run.hpp"

/// Private to the room: the one autograd function of the exchange path.
namespace coterie::nn {

/// y [R, H] of a batch, with one node in the graph that gives gradients to rows, weights and the
/// experts' tensors. Twice through the same graph is fine (retain_graph); gradients of gradients
/// are not. `num_replicas` receives the rows that were sent to devices.
at::Tensor experts_function(const std::shared_ptr<ExpertsRun>& run, const ExpertsRun::Batch& batch,
                            const ExpertTensors& experts, std::int64_t& num_replicas);

}  // namespace coterie::nn
