// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/plan/routing/expert_sets.hpp"

namespace coterie::routing {

/// What C_T would be by chance, and what it cannot fall below, with single copies of experts.
struct ReplicaBounds {
  double random = 0;   ///< expectation for experts chosen at random (or dealt at random)
  double trivial = 0;  ///< fewest devices that can hold as many experts as a token has
  double star = 0;     ///< every expert with the companions that suit it best, separately
  double upper = 0;    ///< most devices a token can need: min(experts of the token, devices)

  /// The better of the two lower bounds.
  [[nodiscard]] double lower() const { return trivial > star ? trivial : star; }
  bool operator==(const ReplicaBounds&) const = default;
};
Json to_json(const ReplicaBounds& bounds);

/// Sizes of devices that hold `num_experts` as evenly as may be, larger ones first.
std::vector<std::int32_t> even_device_sizes(std::int32_t num_experts, std::int32_t num_devices);

/// Expected number of devices of a uniformly random set of `top_k` of all experts, exactly, for
/// devices of any sizes: sum over d of 1 - C(E - m_d, k) / C(E, k) (E = sum of sizes). This is also
/// the expectation of C_T over random placements, whatever the tokens.
double random_replicas(std::int32_t top_k, std::span<const std::int32_t> device_sizes);

/// Fewest devices whose sizes together reach top_k: ceil(k N / E) for equal sizes (Occult Eq. 5).
std::int32_t fewest_devices(std::int32_t top_k, std::span<const std::int32_t> device_sizes);

/// All bounds for the tokens of one layer, means over tokens (sets may differ in size).
///
/// Star bound: C_T = sum over experts e and tokens t with e of 1 / c(e, t), c = experts of t on e's
/// device. Let each e choose its s - 1 best companions for itself (s = largest device) and replace
/// 1/c by the chord through c0 and c0 + 1, which lies below it at every whole c; then the best
/// companions are those that e meets most often. The best c0 is taken for each expert and size of
/// token. O(picks x top_k).
ReplicaBounds replica_bounds(const ExpertSets& sets, std::span<const std::int32_t> device_sizes);

}  // namespace coterie::routing
