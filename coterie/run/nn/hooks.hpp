// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "coterie/run/exchange/exchange.hpp"

namespace coterie::nn {

/// Where a hook is called. Chunk 0 of 1 for the outer two.
struct HookPoint {
  exchange::Direction direction = exchange::Direction::kForward;
  std::int64_t chunk = 0;
  std::int64_t num_chunks = 1;
};

/// Sees a tensor on its way and may return another one; an undefined result leaves it as it is.
using Hook = std::function<at::Tensor(const HookPoint& point, const at::Tensor& rows)>;

/// FSMoE's six places. The outer two see tensors of the autograd graph and may do anything that
/// autograd can follow; they are called once a forward.
///
/// The middle four are called once a chunk, forward and backward: there the rows are gradients.
/// They run outside autograd: gradients take what they do for the identity (compression passes
/// gradients straight through). What a "before" hook returns travels: another type or width is fine
/// if it is the same on all ranks, also for [0, any] rows; the "after" hook then gives back the
/// width and type that the rows had. A tensor lives until the next hook is called; do not keep it.
/// With recompute, dispatch is repeated in the backward, told as Direction::kRecompute.
/// A hook must not use the layer's groups, and what it returns must not depend on being called
/// again.
struct Hooks {
  Hook before_start;     ///< x [T, H]
  Hook before_dispatch;  ///< at home: rows [n, H] that leave, device by device
  Hook after_dispatch;   ///< at the device: rows [m, H] that came
  Hook before_combine;   ///< at the device: sums [m, H], fp32 (or the exchange's partial type)
  Hook after_combine;    ///< at home: the same sums [n, H]
  Hook before_end;       ///< y [T, H]

  [[nodiscard]] bool has_middle() const {
    return before_dispatch || after_dispatch || before_combine || after_combine;
  }
};

}  // namespace coterie::nn
