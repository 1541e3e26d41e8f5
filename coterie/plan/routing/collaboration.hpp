// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/base/matrix.hpp"
#include "coterie/plan/routing/expert_sets.hpp"

namespace coterie::routing {

/// Co-activation counts C (Occult Eq. 3): [num_experts, num_experts], symmetric; C(i, j) = tokens
/// that chose both i and j; the diagonal holds the loads C(i, i).
Matrix<std::uint64_t> count_pairs(const ExpertSets& sets);

/// Collaboration graph P (Occult Eq. 4) with the diagonal masked to 0, as Algorithm 1 needs it:
/// P(i, j) = C(i, j) / max of C off the diagonal, in [0, 1]; all 0 if no two experts meet.
Matrix<double> collaboration_graph(const Matrix<std::uint64_t>& pairs);

}  // namespace coterie::routing
