// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/backend.hpp"

namespace coterie::kernels {

/// Called by each back end's own code for each block of products that it computes.
void count_product(Backend backend) noexcept;

}  // namespace coterie::kernels
