// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/run/comm/comm.hpp"

/// Private to the room.
namespace coterie::nn {

/// Sums over the devices that hold copies of an expert, so that all copies get one gradient and
/// stay equal. `sums` [experts of this rank's device, ...] contiguous; each becomes the sum over
/// its holders in ascending device number, the same bits on each. One all-to-all in `group`.
void sum_copies(comm::Communicator& group, const placement::LayerPlacement& placement,
                at::Tensor& sums);

}  // namespace coterie::nn
