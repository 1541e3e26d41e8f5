// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coterie/run/gates/token_batch.hpp"

namespace coterie::gates {

/// Noise of a gate, [T, columns] on the CPU in fp64. Row t is fixed by (batch.seed, batch.step,
/// stream, token id of t) and nothing else: the same on any rank, in any batch, for any number of
/// threads, and again in recompute. Streams are gates (layers).
at::Tensor normal_noise(const TokenBatch& batch, std::int64_t columns, std::uint64_t stream);

/// As normal_noise, uniform in [0, 1).
at::Tensor uniform_noise(const TokenBatch& batch, std::int64_t columns, std::uint64_t stream);

}  // namespace coterie::gates
