// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace coterie::kernels {

/// A thread's scratch memory, kept between calls; private to the room. In one huge page where the
/// system gives one: small pages at random physical addresses compete for the same sets of the
/// second-level cache. At least `bytes`, 64-byte aligned; std::bad_alloc if there is none.
char* scratch_of_this_thread(std::int64_t bytes);

}  // namespace coterie::kernels
