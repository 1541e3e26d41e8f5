// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "coterie/run/kernels/mbarrier.cuh"

/// Private to the room: the copy engine (TMA) and asynchronous 16-byte copies.
namespace coterie::kernels::cuda {

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Copies a box of a 2-D tensor to shared memory; the bytes count at `barrier`.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}

/// Copies a box of a 4-D tensor to shared memory.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Copies a box of a 5-D tensor to shared memory.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// As load_box, to the same offset of every block of the cluster named by `blocks`, each counting
/// the bytes at its own barrier.
__device__ inline void load_box_to_all(std::uint32_t to, const CUtensorMap* map,
                                       std::uint32_t barrier, std::uint16_t blocks, int c0, int c1,
                                       int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Copies a box of shared memory to a 3-D tensor, without what lies outside of it. First to leave
/// the L2 cache: results are larger than it, operands are what it is for.
__device__ inline void store_box(const CUtensorMap* map, std::uint32_t from, int c0, int c1,
                                 int c2) {
  std::uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint"
      " [%0, {%2, %3, %4}], [%1], %5;" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

/// Closes this thread's group of store_box.
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` of this thread's groups still read shared memory.
template <int kPending>
__device__ inline void wait_for_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until this thread's groups are complete.
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// Copies 16 bytes from global to shared memory, or writes 16 zero bytes if not `valid`.
__device__ inline void copy_16(std::uint32_t to, const void* from, bool valid) {
  const std::uint32_t bytes = valid ? 16U : 0U;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}

/// Arrives at `barrier` once this thread's earlier copy_16 are complete.
__device__ inline void arrive_when_copied(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Shared memory written by ordinary stores or copy_16 becomes visible to tensor cores and TMA.
__device__ inline void fence_to_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace coterie::kernels::cuda
