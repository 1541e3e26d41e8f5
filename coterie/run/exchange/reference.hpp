// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/token_routing.hpp"

namespace coterie::exchange {

/// What an expert does to one row: reads x [hidden] (row `row` of `x`), writes fp32 `out` [hidden].
using ExpertFunction = std::function<void(std::int32_t expert, kernels::ConstMatrixView x,
                                          std::int64_t row, std::span<float> out)>;

/// The whole layer behind the router in one process, as plain loops over tokens, devices and
/// experts: the slow, obvious reference for any form and partial type. x [num_tokens, hidden] fp32
/// or bf16, y the same shape, fp32 or bf16. Equal to the exchange to the last bit if
/// `expert_function` equals the products to the last bit. The routing must have been checked.
void reference_exchange(const TokenRouting& routing, const PlacementIndex& index,
                        const ExchangeOptions& options, kernels::ConstMatrixView x,
                        const ExpertFunction& expert_function, kernels::MatrixView y);

}  // namespace coterie::exchange
