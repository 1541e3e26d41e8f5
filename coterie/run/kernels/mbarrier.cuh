// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Private to the room: barriers in shared memory that count arrivals and bytes (sm_90).
namespace coterie::kernels::cuda {

/// Address of an object in this block's shared memory, as the 32-bit number that PTX wants.
__device__ inline std::uint32_t shared_address(const void* object) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(object));
}

/// Where a wait that never ends reports itself. Without COTERIE_CUDA_WATCHDOG, waits are plain
/// loops and nothing is ever reported.
struct Watchdog {
  unsigned* expired = nullptr;  ///< device word, 0 while all is well
};

#ifdef COTERIE_CUDA_WATCHDOG
constexpr long long kWatchdogClocks = 200'000'000;
#endif

__device__ inline void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the other blocks of the cluster and to the copy engine.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier of the same offset in block `rank` of the cluster. Orders nothing beyond
/// this block: the stages it hands over are rewritten by copy engines, and a release to the whole
/// cluster costs a memory fence of the GPU a stage.
__device__ inline void barrier_arrive_at(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// Arrives and announces `bytes` that copies will deliver.
__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline bool barrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  asm volatile(
      "{\n\t.reg .pred complete;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, complete;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// In builds with COTERIE_CUDA_DELAYS a warp stops here for up to 2 us, one time in 16, so that
/// tests meet orders of events that the usual timing hides.
__device__ inline void random_delay() {
#ifdef COTERIE_CUDA_DELAYS
  const unsigned warp = blockIdx.x * 32U + threadIdx.x / 32U;
  unsigned hash = (static_cast<unsigned>(clock64()) + warp * 40503U) * 2654435761U;
  hash ^= hash >> 15;
  if (hash % 16 == 0) {
    __nanosleep(hash / 16 % 2000);
  }
#endif
}

/// Waits until the phase of that parity is complete.
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity,
                                    const Watchdog& watchdog) {
  random_delay();
#ifdef COTERIE_CUDA_WATCHDOG
  const long long start = clock64();
  while (!barrier_try_wait(barrier, parity)) {
    if (clock64() - start > kWatchdogClocks || *static_cast<volatile unsigned*>(watchdog.expired)) {
      *static_cast<volatile unsigned*>(watchdog.expired) = 1U + blockIdx.x;
      return;
    }
  }
#else
  static_cast<void>(watchdog);
  while (!barrier_try_wait(barrier, parity)) {
  }
#endif
}

}  // namespace coterie::kernels::cuda
