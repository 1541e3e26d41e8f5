// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace coterie::models {

/// A function of one tensor whose graph is not kept: forward runs without gradients and keeps x
/// only; backward runs `function` again with gradients, then goes back through that. Parameters
/// used inside gain their gradients then. `function` must give the same bits both times and must
/// not count things twice: it is told whether this is the second time. Its results are defined, and
/// as many both times.
using Recomputable = std::function<std::vector<at::Tensor>(const at::Tensor& x, bool again)>;
std::vector<at::Tensor> recomputed(const Recomputable& function, const at::Tensor& x);

}  // namespace coterie::models
