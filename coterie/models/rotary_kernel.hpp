// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/models/trainable_attention.hpp"

/// Private to the room.
namespace coterie::models {

/// Whether rotary_on_gpu takes these: bf16 or fp32 on a GPU, tables in fp32 there.
bool has_rotary_kernel(const at::Tensor& x, const RotaryTable& table);

/// x [T, heads, d] rotated by the tokens' positions, in one kernel; differentiable.
at::Tensor rotary_on_gpu(const at::Tensor& x, const SequenceShape& shape);

}  // namespace coterie::models
