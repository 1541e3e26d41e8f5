// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>

namespace coterie::exchange {

/// Tokens of a block. A rank's tokens are cut into blocks by position: block b holds its tokens
/// [64 b, 64 (b + 1)). Blocks fix the order in which weight gradients are summed; chunks are whole
/// blocks, so that no number of chunks changes a bit (docs/design/017). A constant, since changing
/// it changes the bits of every gradient.
inline constexpr std::int64_t kTokensPerBlock = 64;

/// Blocks [first, end), the same on every rank; a rank with fewer tokens has nothing in the last.
struct BlockRange {
  std::int64_t first = 0;
  std::int64_t end = 0;

  bool operator==(const BlockRange&) const = default;
};

/// Blocks that hold `num_tokens` tokens.
constexpr std::int64_t num_blocks_of(std::int64_t num_tokens) {
  return (num_tokens + kTokensPerBlock - 1) / kTokensPerBlock;
}

/// The blocks of one of `num_chunks` chunks: as even as whole blocks allow, in order, perhaps none.
constexpr BlockRange blocks_of_chunk(std::int64_t num_blocks, std::int64_t num_chunks,
                                     std::int64_t chunk) {
  return {num_blocks * chunk / num_chunks, num_blocks * (chunk + 1) / num_chunks};
}

/// The same for chunks of unequal size: `shares` of the blocks, one a chunk, sum 1. Bounds are
/// rounded to whole blocks, so a chunk may be empty.
inline BlockRange blocks_of_share(std::int64_t num_blocks, std::span<const double> shares,
                                  std::int64_t chunk) {
  const auto bound = [&](std::int64_t count) {
    if (count == std::ssize(shares)) {
      return num_blocks;
    }
    const auto first = shares.begin();
    const double share = std::accumulate(first, first + count, 0.0);
    return std::min(num_blocks, static_cast<std::int64_t>(
                                    std::llround(share * static_cast<double>(num_blocks))));
  };
  return {bound(chunk), bound(chunk + 1)};
}

}  // namespace coterie::exchange
