// SPDX-License-Identifier: Apache-2.0
#pragma once

// The AVX-512 intrinsics that the kernels use, in plain C++ under other names, and macros that put
// them in place: included before the kernels' sources, it lets any AVX2 machine run their logic.

#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>

#include "coterie/run/kernels/bfloat16.hpp"

namespace coterie::kernels::emulated {

template <class To, class From>
To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
using Floats = std::array<float, 16>;
using Words = std::array<std::uint32_t, 16>;
using Doubles = std::array<double, 8>;
using Halves = std::array<std::uint16_t, 32>;

inline __m512 setzero_ps() {
  return cast<__m512>(Floats{});
}
inline __m512 loadu_ps(const void* p) {
  __m512 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void storeu_ps(void* p, __m512 v) {
  std::memcpy(p, &v, sizeof(v));
}
inline __m512i loadu_si512(const void* p) {
  return cast<__m512i>(loadu_ps(p));
}
inline void storeu_si512(void* p, __m512i v) {
  std::memcpy(p, &v, sizeof(v));
}
inline __m512i cvtepu16_epi32(__m256i v) {
  const auto in = cast<std::array<std::uint16_t, 16>>(v);
  Words out;
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = in[i];
  }
  return cast<__m512i>(out);
}
inline __m512i slli_epi32(__m512i v, unsigned count) {
  auto words = cast<Words>(v);
  for (std::uint32_t& word : words) {
    word <<= count;
  }
  return cast<__m512i>(words);
}
inline __m512 castsi512_ps(__m512i v) {
  return cast<__m512>(v);
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const auto x = cast<Floats>(a), y = cast<Floats>(b), z = cast<Floats>(c);
  Floats out;
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = std::fma(x[i], y[i], z[i]);
  }
  return cast<__m512>(out);
}
inline __m512 add_ps(__m512 a, __m512 b) {
  const auto x = cast<Floats>(a), y = cast<Floats>(b);
  Floats out;
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = x[i] + y[i];
  }
  return cast<__m512>(out);
}
inline __m512 shuffle_ps(__m512 a, __m512 b, unsigned selector) {
  const auto x = cast<Floats>(a), y = cast<Floats>(b);
  Floats out;
  for (std::size_t i = 0; i < 16; ++i) {
    const std::size_t from = i / 4 * 4 + (selector >> (2 * (i % 4)) & 3U);
    out[i] = i % 4 < 2 ? x[from] : y[from];
  }
  return cast<__m512>(out);
}
inline __m256 castps512_ps256(__m512 v) {
  __m256 low;
  std::memcpy(&low, &v, sizeof(low));
  return low;
}
inline __m256 extractf32x8_ps(__m512 v, int part) {
  __m256 half;
  std::memcpy(&half, reinterpret_cast<const char*>(&v) + 32 * part, sizeof(half));
  return half;
}
inline __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  auto out = cast<Floats>(sum);
  const auto x = cast<Halves>(a), y = cast<Halves>(b);
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = std::fma(from_bfloat16(x[2 * i + 1]), from_bfloat16(y[2 * i + 1]), out[i]);
    out[i] = std::fma(from_bfloat16(x[2 * i]), from_bfloat16(y[2 * i]), out[i]);
  }
  return cast<__m512>(out);
}

inline __m512i set1_epi32(int v) {
  Words out;
  out.fill(static_cast<std::uint32_t>(v));
  return cast<__m512i>(out);
}
inline __m512i or_si512(__m512i a, __m512i b) {
  const auto x = cast<Words>(a), y = cast<Words>(b);
  Words out;
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = x[i] | y[i];
  }
  return cast<__m512i>(out);
}
inline __m512 set1_ps(float v) {
  Floats out;
  out.fill(v);
  return cast<__m512>(out);
}
inline __m512d setzero_pd() {
  return cast<__m512d>(Doubles{});
}
inline __m512d loadu_pd(const void* p) {
  return cast<__m512d>(loadu_ps(p));
}
inline void storeu_pd(void* p, __m512d v) {
  std::memcpy(p, &v, sizeof(v));
}
inline __m512d set1_pd(double v) {
  Doubles out;
  out.fill(v);
  return cast<__m512d>(out);
}
inline __m512d fmadd_pd(__m512d a, __m512d b, __m512d c) {
  const auto x = cast<Doubles>(a), y = cast<Doubles>(b), z = cast<Doubles>(c);
  Doubles out;
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = std::fma(x[i], y[i], z[i]);
  }
  return cast<__m512d>(out);
}

}  // namespace coterie::kernels::emulated

#define _mm512_setzero_ps ::coterie::kernels::emulated::setzero_ps
#define _mm512_loadu_ps ::coterie::kernels::emulated::loadu_ps
#define _mm512_storeu_ps ::coterie::kernels::emulated::storeu_ps
#define _mm512_loadu_si512 ::coterie::kernels::emulated::loadu_si512
#define _mm512_storeu_si512 ::coterie::kernels::emulated::storeu_si512
#define _mm512_cvtepu16_epi32 ::coterie::kernels::emulated::cvtepu16_epi32
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 ::coterie::kernels::emulated::slli_epi32
#define _mm512_castsi512_ps ::coterie::kernels::emulated::castsi512_ps
#define _mm512_fmadd_ps ::coterie::kernels::emulated::fmadd_ps
#define _mm512_add_ps ::coterie::kernels::emulated::add_ps
#undef _mm512_shuffle_ps
#define _mm512_shuffle_ps ::coterie::kernels::emulated::shuffle_ps
#define _mm512_castps512_ps256 ::coterie::kernels::emulated::castps512_ps256
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps ::coterie::kernels::emulated::extractf32x8_ps
#define _mm512_dpbf16_ps ::coterie::kernels::emulated::dpbf16_ps
#define _mm512_set1_ps ::coterie::kernels::emulated::set1_ps
#define _mm512_setzero_pd ::coterie::kernels::emulated::setzero_pd
#define _mm512_loadu_pd ::coterie::kernels::emulated::loadu_pd
#define _mm512_storeu_pd ::coterie::kernels::emulated::storeu_pd
#define _mm512_set1_pd ::coterie::kernels::emulated::set1_pd
#define _mm512_fmadd_pd ::coterie::kernels::emulated::fmadd_pd
#define _mm512_set1_epi32 ::coterie::kernels::emulated::set1_epi32
#define _mm512_or_si512 ::coterie::kernels::emulated::or_si512
