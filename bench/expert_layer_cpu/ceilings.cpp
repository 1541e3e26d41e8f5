// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_layer_cpu/ceilings.hpp"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace coterie::bench {
namespace {

using kernels::Backend;

constexpr std::int64_t kRounds = 200000;

#if defined(__x86_64__)
// Twelve independent chains: latency 4 times two units a cycle, and some to spare. Written out,
// since an array of vectors would live in memory.
__attribute__((target("avx2,fma"))) void fma_avx2(std::int64_t rounds) {
  __m256 x = _mm256_set1_ps(0.999F);
  __m256 y = _mm256_set1_ps(1e-3F);
  __m256 s0 = _mm256_set1_ps(1.0F + 0.0e-3F);
  __m256 s1 = _mm256_set1_ps(1.0F + 1.0e-3F);
  __m256 s2 = _mm256_set1_ps(1.0F + 2.0e-3F);
  __m256 s3 = _mm256_set1_ps(1.0F + 3.0e-3F);
  __m256 s4 = _mm256_set1_ps(1.0F + 4.0e-3F);
  __m256 s5 = _mm256_set1_ps(1.0F + 5.0e-3F);
  __m256 s6 = _mm256_set1_ps(1.0F + 6.0e-3F);
  __m256 s7 = _mm256_set1_ps(1.0F + 7.0e-3F);
  __m256 s8 = _mm256_set1_ps(1.0F + 8.0e-3F);
  __m256 s9 = _mm256_set1_ps(1.0F + 9.0e-3F);
  __m256 s10 = _mm256_set1_ps(1.0F + 10.0e-3F);
  __m256 s11 = _mm256_set1_ps(1.0F + 11.0e-3F);
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = _mm256_fmadd_ps(s0, x, y);
    s1 = _mm256_fmadd_ps(s1, x, y);
    s2 = _mm256_fmadd_ps(s2, x, y);
    s3 = _mm256_fmadd_ps(s3, x, y);
    s4 = _mm256_fmadd_ps(s4, x, y);
    s5 = _mm256_fmadd_ps(s5, x, y);
    s6 = _mm256_fmadd_ps(s6, x, y);
    s7 = _mm256_fmadd_ps(s7, x, y);
    s8 = _mm256_fmadd_ps(s8, x, y);
    s9 = _mm256_fmadd_ps(s9, x, y);
    s10 = _mm256_fmadd_ps(s10, x, y);
    s11 = _mm256_fmadd_ps(s11, x, y);
    asm volatile("" : "+x"(x), "+x"(y));
  }
  asm volatile(""
               :
               : "x"(s0), "x"(s1), "x"(s2), "x"(s3), "x"(s4), "x"(s5), "x"(s6), "x"(s7), "x"(s8),
                 "x"(s9), "x"(s10), "x"(s11));
}

__attribute__((target("avx512f"))) void fma_avx512(std::int64_t rounds) {
  __m512 x = _mm512_set1_ps(0.999F);
  __m512 y = _mm512_set1_ps(1e-3F);
  __m512 s0 = _mm512_set1_ps(1.0F + 0.0e-3F);
  __m512 s1 = _mm512_set1_ps(1.0F + 1.0e-3F);
  __m512 s2 = _mm512_set1_ps(1.0F + 2.0e-3F);
  __m512 s3 = _mm512_set1_ps(1.0F + 3.0e-3F);
  __m512 s4 = _mm512_set1_ps(1.0F + 4.0e-3F);
  __m512 s5 = _mm512_set1_ps(1.0F + 5.0e-3F);
  __m512 s6 = _mm512_set1_ps(1.0F + 6.0e-3F);
  __m512 s7 = _mm512_set1_ps(1.0F + 7.0e-3F);
  __m512 s8 = _mm512_set1_ps(1.0F + 8.0e-3F);
  __m512 s9 = _mm512_set1_ps(1.0F + 9.0e-3F);
  __m512 s10 = _mm512_set1_ps(1.0F + 10.0e-3F);
  __m512 s11 = _mm512_set1_ps(1.0F + 11.0e-3F);
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = _mm512_fmadd_ps(s0, x, y);
    s1 = _mm512_fmadd_ps(s1, x, y);
    s2 = _mm512_fmadd_ps(s2, x, y);
    s3 = _mm512_fmadd_ps(s3, x, y);
    s4 = _mm512_fmadd_ps(s4, x, y);
    s5 = _mm512_fmadd_ps(s5, x, y);
    s6 = _mm512_fmadd_ps(s6, x, y);
    s7 = _mm512_fmadd_ps(s7, x, y);
    s8 = _mm512_fmadd_ps(s8, x, y);
    s9 = _mm512_fmadd_ps(s9, x, y);
    s10 = _mm512_fmadd_ps(s10, x, y);
    s11 = _mm512_fmadd_ps(s11, x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  asm volatile(""
               :
               : "v"(s0), "v"(s1), "v"(s2), "v"(s3), "v"(s4), "v"(s5), "v"(s6), "v"(s7), "v"(s8),
                 "v"(s9), "v"(s10), "v"(s11));
}

__attribute__((target("avx512f,avx512bf16"))) void dot_bf16(std::int64_t rounds) {
  __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.25F));
  __m512bh y = _mm512_cvtne2ps_pbh(_mm512_set1_ps(-0.5F), _mm512_set1_ps(0.25F));
  __m512 s0 = _mm512_set1_ps(1.0F + 0.0e-3F);
  __m512 s1 = _mm512_set1_ps(1.0F + 1.0e-3F);
  __m512 s2 = _mm512_set1_ps(1.0F + 2.0e-3F);
  __m512 s3 = _mm512_set1_ps(1.0F + 3.0e-3F);
  __m512 s4 = _mm512_set1_ps(1.0F + 4.0e-3F);
  __m512 s5 = _mm512_set1_ps(1.0F + 5.0e-3F);
  __m512 s6 = _mm512_set1_ps(1.0F + 6.0e-3F);
  __m512 s7 = _mm512_set1_ps(1.0F + 7.0e-3F);
  __m512 s8 = _mm512_set1_ps(1.0F + 8.0e-3F);
  __m512 s9 = _mm512_set1_ps(1.0F + 9.0e-3F);
  __m512 s10 = _mm512_set1_ps(1.0F + 10.0e-3F);
  __m512 s11 = _mm512_set1_ps(1.0F + 11.0e-3F);
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = _mm512_dpbf16_ps(s0, x, y);
    s1 = _mm512_dpbf16_ps(s1, x, y);
    s2 = _mm512_dpbf16_ps(s2, x, y);
    s3 = _mm512_dpbf16_ps(s3, x, y);
    s4 = _mm512_dpbf16_ps(s4, x, y);
    s5 = _mm512_dpbf16_ps(s5, x, y);
    s6 = _mm512_dpbf16_ps(s6, x, y);
    s7 = _mm512_dpbf16_ps(s7, x, y);
    s8 = _mm512_dpbf16_ps(s8, x, y);
    s9 = _mm512_dpbf16_ps(s9, x, y);
    s10 = _mm512_dpbf16_ps(s10, x, y);
    s11 = _mm512_dpbf16_ps(s11, x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  asm volatile(""
               :
               : "v"(s0), "v"(s1), "v"(s2), "v"(s3), "v"(s4), "v"(s5), "v"(s6), "v"(s7), "v"(s8),
                 "v"(s9), "v"(s10), "v"(s11));
}

__attribute__((target("avx2"))) void read_avx2(const char* data, std::int64_t bytes) {
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  __m256i c = a;
  __m256i d = a;
  for (std::int64_t i = 0; i + 128 <= bytes; i += 128) {
    const auto* const at = reinterpret_cast<const __m256i*>(data + i);
    a = _mm256_xor_si256(a, _mm256_loadu_si256(at));
    b = _mm256_xor_si256(b, _mm256_loadu_si256(at + 1));
    c = _mm256_xor_si256(c, _mm256_loadu_si256(at + 2));
    d = _mm256_xor_si256(d, _mm256_loadu_si256(at + 3));
  }
  asm volatile("" : : "x"(a), "x"(b), "x"(c), "x"(d));
}
#endif

/// Portable stand-ins: as good as the generic back end can hope for.
void fma_generic(std::int64_t rounds) {
  typedef float Vec __attribute__((vector_size(16)));
  Vec s0 = {1, 2, 3, 4}, s1 = s0 + 1, s2 = s0 + 2, s3 = s0 + 3, s4 = s0 + 4, s5 = s0 + 5;
  Vec s6 = s0 + 6, s7 = s0 + 7, x = s0 * 0.1F, y = s0 * 1e-3F;
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = s0 * x + y, s1 = s1 * x + y, s2 = s2 * x + y, s3 = s3 * x + y;
    s4 = s4 * x + y, s5 = s5 * x + y, s6 = s6 * x + y, s7 = s7 * x + y;
    asm volatile("" : : "m"(x), "m"(y));
  }
  volatile float sink = (s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7)[0];
  static_cast<void>(sink);
}

void read_generic(const char* data, std::int64_t bytes) {
  std::uint64_t sum = 0;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(data);
  for (std::int64_t i = 0; i < bytes / 8; ++i) {
    sum ^= words[i];
  }
  volatile std::uint64_t sink = sum;
  static_cast<void>(sink);
}

double gflops(kernels::Threads& threads, void (*loop)(std::int64_t), double flops_per_round) {
  const double start = now_s();
  threads.run(threads.size(), [&](std::int64_t) { loop(kRounds); });
  return flops_per_round * static_cast<double>(kRounds) * threads.size() / (now_s() - start) / 1e9;
}

}  // namespace

double now_s() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double Ceilings::fp32_gflops() const {
#if defined(__x86_64__)
  if (backend == Backend::kAvx2) {
    return gflops(threads, fma_avx2, 2.0 * 12 * 8);
  }
  if (backend == Backend::kAvx512 || backend == Backend::kAvx512Bf16) {
    return gflops(threads, fma_avx512, 2.0 * 12 * 16);
  }
#endif
  return gflops(threads, fma_generic, 2.0 * 8 * 4);
}

double Ceilings::bf16_gflops() const {
#if defined(__x86_64__)
  if (backend == Backend::kAvx512Bf16) {
    return gflops(threads, dot_bf16, 2.0 * 12 * 32);
  }
#endif
  return fp32_gflops();
}

double Ceilings::read_gbs(const void* data, std::int64_t bytes) const {
  auto* read = read_generic;
#if defined(__x86_64__)
  if (is_available(Backend::kAvx2)) {
    read = read_avx2;
  }
#endif
  const std::int64_t share = bytes / threads.size() / 128 * 128;
  const double start = now_s();
  threads.run(threads.size(),
              [&](std::int64_t t) { read(static_cast<const char*>(data) + t * share, share); });
  return static_cast<double>(share * threads.size()) / (now_s() - start) / 1e9;
}

}  // namespace coterie::bench
