// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

/// Which journey: tokens and results, their gradients, or tokens once more for the backward.
enum class Direction : std::uint8_t {
  kForward,
  kBackward,
  kRecompute,  ///< only dispatch; a hook that counts must not count again
};

/// Where a hook is called: around both journeys of each chunk.
enum class RowHookPlace : std::uint8_t {
  kBeforeDispatch,  ///< at home: rows that are about to leave, device by device
  kAfterDispatch,   ///< at the device: the same rows as they arrived
  kBeforeCombine,   ///< at the device: sums that are about to go home
  kAfterCombine,    ///< at home: the same sums as they came back
};

struct RowHookPoint {
  RowHookPlace place = RowHookPlace::kBeforeDispatch;
  Direction direction = Direction::kForward;
  std::int64_t chunk = 0;
  std::int64_t num_chunks = 1;
};

/// Sees the rows of every chunk and may replace them. What a "before" hook returns travels: any
/// number of columns, any type of the kernels, the same on all ranks of the group, also for no
/// rows. What an "after" hook returns must again have the width and type that the rows had before
/// the "before" hook. Gradients take a replacement for the identity.
class RowHooks {
 public:
  virtual ~RowHooks() = default;
  /// Returns `rows` or other rows of the same number, without gaps between them, valid until the
  /// next call.
  virtual kernels::ConstMatrixView replace(const RowHookPoint& point,
                                           kernels::ConstMatrixView rows) = 0;
};

}  // namespace coterie::exchange
