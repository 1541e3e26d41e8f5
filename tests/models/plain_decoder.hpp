// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/models/training_case.hpp"

namespace coterie::models {

/// Mean loss plus balance losses of all sequences, by the obvious formulas on whole tensors under
/// their checkpoint names, in one process: no batching, no fusing, no chunks, experts one by one.
/// Differentiable. Shares nothing with the decoder but the config.
at::Tensor plain_loss(const TrainableConfig& config, const WholeTensors& weights,
                      const std::vector<std::vector<std::int64_t>>& sequences,
                      const gates::BalanceOptions& balance);

}  // namespace coterie::models
