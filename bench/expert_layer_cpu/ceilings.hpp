// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::bench {

/// What the machine itself can do, measured with the threads that the kernels use.
struct Ceilings {
  kernels::Threads& threads;
  kernels::Backend backend;

  /// fp32 multiply-adds in registers only, GFLOP/s.
  [[nodiscard]] double fp32_gflops() const;
  /// bf16 products in registers only: vdpbf16ps where the back end uses it. Elsewhere bf16 is
  /// computed in fp32, and this is fp32_gflops().
  [[nodiscard]] double bf16_gflops() const;
  /// One pass of reading memory with vector loads, GB/s.
  [[nodiscard]] double read_gbs(const void* data, std::int64_t bytes) const;
};

/// Seconds since some start.
double now_s();

}  // namespace coterie::bench
