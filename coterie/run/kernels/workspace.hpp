// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Private to the room: how the parts of a caller's workspace lie.
namespace coterie::kernels::cuda {

/// Bytes of a part that the next one may follow.
constexpr std::size_t align(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace coterie::kernels::cuda
