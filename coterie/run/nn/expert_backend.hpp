// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "coterie/run/nn/experts.hpp"

namespace coterie::nn {

/// Whose code computes the experts of one process in plain ATen. Both are oracles and baselines of
/// the library's own kernels; autograd goes through both.
enum class ExpertBackend : std::uint8_t {
  kLoop,       ///< a loop over the experts, one product each
  kGroupedMm,  ///< torch's grouped products over rows sorted by expert
};

/// "loop", "grouped_mm".
const char* name_of(ExpertBackend backend) noexcept;

/// The back end of that name; kBadInput naming `source` and the names there are otherwise.
ExpertBackend parse_expert_backend(std::string_view name, const std::string& source);

/// y[t] = sum over picks j of weights[t, j] * expert ids[t, j] (rows[t]), for the experts held;
/// other ids, and -1, add nothing. rows [T, H], ids [T, k] int32 global expert ids, weights [T, k];
/// y [T, H] of the rows' type. kUnsupported for kGroupedMm with custom experts.
at::Tensor compute_experts(ExpertBackend backend, ExpertsImpl& experts, const at::Tensor& rows,
                           const at::Tensor& ids, const at::Tensor& weights);

}  // namespace coterie::nn
