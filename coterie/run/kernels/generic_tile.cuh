// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "coterie/run/kernels/mma.cuh"

/// Private to the room: a 64 x 64 tile of the generic backward products. Operands are turned on
/// their way into shared memory so that K lies inside.
namespace coterie::kernels::cuda {

constexpr int kTileThreads = 256;
constexpr int kTile = 64;
constexpr int kStep = 32;          // elements of K a step
constexpr int kPitch = kStep + 8;  // elements; keeps reads free of conflicts

/// Both operands of a step, K inside.
template <typename T>
struct Stage {
  T a[kTile][kPitch];
  T b[kTile][kPitch];
};

/// Sums of one thread. 16-bit types: warp w has rows 16 (w % 4) ff., columns 32 (w / 4) ff., four
/// fragments of 8 columns. fp32: row thread / 4, columns thread % 4 + 4 j.
template <typename T>
struct Sums {
  float d[4][4] = {};

  __device__ void add(const Stage<T>& stage) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (std::is_same_v<T, float>) {
      for (int k = 0; k < kStep; ++k) {
        const float a = stage.a[thread / 4][k];
        for (int j = 0; j < 16; ++j) {
          d[j / 4][j % 4] += a * stage.b[thread % 4 + 4 * j][k];
        }
      }
    } else {
      const int lane = thread % 32;
      const int row = thread / 32 % 4 * 16 + lane / 4;
      const int column = thread / 128 * 32 + lane / 4;
      const auto two = [](const T* from) { return *reinterpret_cast<const std::uint32_t*>(from); };
      for (int k = lane % 4 * 2; k < kStep; k += 16) {
        const std::uint32_t a[4] = {two(&stage.a[row][k]), two(&stage.a[row + 8][k]),
                                    two(&stage.a[row][k + 8]), two(&stage.a[row + 8][k + 8])};
        for (int j = 0; j < 4; ++j) {
          multiply(d[j], a, two(&stage.b[column + 8 * j][k]), two(&stage.b[column + 8 * j][k + 8]),
                   T{});
        }
      }
    }
  }

  /// Calls put(row, column, sum) for each.
  template <typename Put>
  __device__ void for_each(const Put& put) const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 16; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        put(thread / 4, thread % 4 + 4 * i, d[i / 4][i % 4]);
      } else {
        const int lane = thread % 32;
        put(thread / 32 % 4 * 16 + lane / 4 + i / 2 % 2 * 8,
            thread / 128 * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2, d[i / 4][i % 4]);
      }
    }
  }
};

}  // namespace coterie::kernels::cuda
