// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: what files with vector code share. Each <op>_<isa>.cpp includes these
// headers under its own compiler flags and instantiates them with types of an unnamed namespace, so
// that no code compiled for one processor can serve another. For that reason they use no inline
// function of the standard library.
//
// An Isa of fp32 vectors has: Scalar = float, Vec, Int (as many 32-bit integers), Four (four
// floats), kLanes, zero, load, load_bf16, store, broadcast, multiply_add, reduce_four and the sizes
// of tiles and blocks. A Wide of fp64 vectors has what outer_loops.hpp asks for.

#include <cstdint>
#include <cstring>

namespace coterie::kernels {

using i64 = std::int64_t;

#define COTERIE_INLINE inline __attribute__((always_inline))

}  // namespace coterie::kernels
