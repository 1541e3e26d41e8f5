// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/backward_hopper.cuh"

/// Private to the room: how the sums of a consumer warpgroup, 64 rows x 2 * kSums columns, leave
/// through the copy engine: rounded, in patches of 64 x 64, two of which are staged in turn. The
/// engine stores them while more is staged and the next tile is computed.
namespace coterie::kernels::cuda {

constexpr int kPatchBytes = 64 * 64 * 2;
constexpr int kPatchesBytes = 2 * kPatchBytes;  // of a warpgroup

/// Where patches go.
struct PatchExit {
  const CUtensorMap& map;  // 3-D, in boxes of 64 x 64
  int group;               // which of the two warpgroups
  std::uint32_t staging;   // this warpgroup's, a multiple of 1024
};

/// Rounds and stages columns [64 i, 64 i + 64) as they lie, or transposed.
template <bool kTransposed, int kSums>
__device__ inline void stage_patch(const float (&d)[kSums], int i, std::uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int right = lane / 16;  // which of the four 8 x 8 matrices this lane addresses
  const int below = lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int s = 32 * i + 8 * j;
    const std::uint32_t words[4] = {pack(d[s], d[s + 1]), pack(d[s + 2], d[s + 3]),
                                    pack(d[s + 4], d[s + 5]), pack(d[s + 6], d[s + 7])};
    if constexpr (kTransposed) {
      store_matrices_transposed(to + swizzled(16 * j + 8 * right + lane % 8, 2 * warp + below),
                                words[0], words[1], words[2], words[3]);
    } else {
      store_matrices(to + swizzled(16 * warp + 8 * below + lane % 8, 2 * j + right), words[0],
                     words[1], words[2], words[3]);
    }
  }
}

/// Stores a warpgroup's sums at (c0, c1, c2) of the map, c0 running fastest; what lies outside of
/// the tensor is left out. Transposed, rows of the sums run along c0.
template <bool kTransposed, int kSums>
__device__ inline void store_patches(const float (&d)[kSums], const PatchExit& exit, int c0, int c1,
                                     int c2) {
  const bool first = threadIdx.x % 128 == 0;
#pragma unroll
  for (int i = 0; i < kSums / 32; ++i) {
    const std::uint32_t patch = exit.staging + i % 2 * kPatchBytes;
    if (first) {
      wait_for_stores_read<1>();
    }
    warpgroup_sync(exit.group);  // the patch is free
    stage_patch<kTransposed>(d, i, patch);
    fence_to_async();
    warpgroup_sync(exit.group);  // the patch is full
    if (first) {
      store_box(&exit.map, patch, kTransposed ? c0 : c0 + 64 * i, kTransposed ? c1 + 64 * i : c1,
                c2);
      commit_stores();
    }
  }
}

/// Waits until the staging of a warpgroup may be used otherwise.
__device__ inline void empty_patches(int group) {
  if (threadIdx.x % 128 == 0) {
    wait_for_stores_read<0>();
  }
  warpgroup_sync(group);
}

}  // namespace coterie::kernels::cuda
