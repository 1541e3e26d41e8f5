// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/run/comm/comm.hpp"

/// The door of the room: experts that change their device between two steps.
namespace coterie::migration {

/// What one rank (= device) holds of one layer: for each of its experts, ascending, `expert_bytes`
/// bytes that mean the same wherever they lie: weights, or an optimizer's state.
struct HeldExperts {
  std::span<const std::byte> before;  ///< [experts of `from` here * expert_bytes]
  std::span<std::byte> after;         ///< [experts of `to` here * expert_bytes]
  std::size_t expert_bytes = 0;
};

/// Fills `after` with the bytes of the experts that this rank holds by `to`. What stays is copied;
/// what comes travels once, from the lowest device that had it. One all-to-all, so all ranks of
/// `group` (devices of both placements) must call it. kBadInput naming the values if sizes or
/// placements do not fit. `before` and `after` must not overlap.
void move_experts(const placement::LayerPlacement& from, const placement::LayerPlacement& to,
                  const HeldExperts& held, comm::Communicator& group);

/// Bytes that this rank would send.
std::int64_t bytes_to_send(const placement::LayerPlacement& from,
                           const placement::LayerPlacement& to, std::size_t expert_bytes, int rank);

}  // namespace coterie::migration
