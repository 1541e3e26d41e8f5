// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/product_hopper.cuh"

/// Private to the room: what the backward kernels on Hopper have in common.
namespace coterie::kernels::cuda {

constexpr int kMaxSharedBytes = 232448;           // of a block
constexpr int kGroupBytes = 64 * kDepthStep * 2;  // 64 columns of a stage

/// Place of 16-byte piece `piece` in row `row` of rows of 128 bytes under the 128-byte swizzle.
__device__ inline std::uint32_t swizzled(int row, int piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

__device__ inline float low_half(std::uint32_t two) {
  return __uint_as_float(two << 16);
}

__device__ inline float high_half(std::uint32_t two) {
  return __uint_as_float(two & 0xFFFF0000U);
}

__device__ inline uint4 load_shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

__device__ inline void store_shared_16(std::uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Not through the L1 cache, and in program order with stores: the row may be overwritten later.
__device__ inline uint4 load_global_16(const void* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/// First to leave the L2 cache: results are larger than it, operands are what it is for.
__device__ inline void store_global_16(void* to, const uint4& v) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// As copy_16, and brings the surrounding 256 bytes into the L2 cache: a neighbour block or the
/// next step wants them.
__device__ inline void gather_16(std::uint32_t to, const void* from, bool valid) {
  const std::uint32_t bytes = valid ? 16U : 0U;
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}

/// Waits for the 128 threads of one consumer warpgroup; `group` is 0 or 1.
__device__ inline void warpgroup_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/// Barriers of a ring that a cluster of two shares: one thread. Full ones first, then empty ones.
template <int kStages>
__device__ inline void init_ring(std::uint32_t barriers, int full_arrivals) {
  for (int s = 0; s < kStages; ++s) {
    barrier_init(barriers + 8 * s, full_arrivals);
    barrier_init(barriers + 8 * (kStages + s), 16);  // consumer warps of both blocks
  }
  fence_barrier_init();
}

/// A consumer warp has read a stage: tells the producers of both blocks of the cluster.
__device__ inline void release_stage(std::uint32_t empty) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane < 2) {
    barrier_arrive_at(empty, lane);
  }
}

/// Rounds a warp's 16 rows x 256 columns and stores the first `num_rows` and `num_columns` of them,
/// through its staging (16 rows of 272 bytes). Whole pieces of 16 bytes by the threads themselves:
/// one bulk copy a row keeps the copy engine, and so the next tile's loads, busy for longer.
__device__ inline void store_row_block(const float (&d)[128], std::uint32_t staging,
                                       const RowTarget& to, int num_rows, int num_columns) {
  constexpr int kPitch = 256 + 16;  // bytes; rows start in different banks
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t address =
      staging + ((lane / 8 & 1) * 8 + lane % 8) * kPitch + (lane / 16) * 16;
  char* const target = to.data + lane / 16 * to.stride_bytes + lane % 16 * 16;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const int i = pass * 64 + 4 * j;
      store_matrices(address + j * 16, pack(d[i], d[i + 1]), pack(d[i + 2], d[i + 3]),
                     pack(d[i + 4], d[i + 5]), pack(d[i + 6], d[i + 7]));
    }
    __syncwarp();
    const bool inside = pass * 128 + lane % 16 * 8 < num_columns;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 16 + 2 * i;
      if (inside && row < num_rows) {
        store_global_16(target + 2 * i * to.stride_bytes + pass * 256,
                        load_shared_16(staging + row * kPitch + lane % 16 * 16));
      }
    }
  }
}

}  // namespace coterie::kernels::cuda
