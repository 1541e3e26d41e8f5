// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "coterie/run/nn/experts_run.hpp"

/// Private to the room: modules of a user as experts.
namespace coterie::nn {

/// y [R, H] of a batch. For each chunk three steps in the graph: one node takes rows to their
/// experts (dispatch), each expert's module runs on its rows, one node takes the results home
/// (combine). Every module is called in every chunk, if only with [0, H], so its parameters always
/// get defined gradients. Collectives in the backward: combine, then dispatch, of the last chunk
/// first. `num_replicas` receives the rows that were sent to devices.
at::Tensor custom_experts(const std::shared_ptr<ExpertsRun>& run, ExpertsImpl& experts,
                          const ExpertsRun::Batch& batch, std::int64_t& num_replicas);

}  // namespace coterie::nn
