// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "coterie/run/comm/comm.hpp"

namespace coterie::training {

/// The most memory that this process has had resident so far.
std::int64_t peak_memory_bytes();
/// What it has resident now.
std::int64_t resident_memory_bytes();

/// Floating-point operations a second of all ranks together: `stated` a rank if that is above 0,
/// else measured on all ranks at once by fp32 products of 512 x 512 matrices (the best of a tenth
/// of a second); on a GPU by bf16 products of 8192 x 8192 matrices (the middle of three groups of
/// twenty). Collective; the same on every rank.
double peak_flops_of_ranks(double stated, const at::Device& device, comm::Communicator& world);

}  // namespace coterie::training
