// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: products of the experts' rows with weights that are not transposed.
namespace coterie::kernels {

/// Sums of some rows of one expert in columns [begin, begin + count), fp32 or fp64.
struct OuterResult {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  const char* sums = nullptr;
  std::int64_t stride = 0;  ///< bytes between rows

  [[nodiscard]] const void* row(std::int64_t m) const { return sums + m * stride; }
};

/// result[r][n] = sum over k of rows[r][k] w_e[k][n], k upwards, one chain an element.
struct OuterColumns {
  std::span<const void* const> rows;  ///< [R]; null: zeros
  DType row_type = DType::kFloat32;   ///< fp64: all is
  std::span<const std::int64_t> offsets;
  std::span<const ConstMatrixView> w;  ///< [E] of [K, num_columns]
  std::int64_t num_columns = 0;

  /// Hands each block of sums to `finish` once, on the thread that made it; sums of columns from
  /// count up to a whole kOuterUnit are there, too, but mean nothing.
  void run(Backend backend, Threads& threads,
           const std::function<void(const OuterResult&)>& finish) const;
};

/// Writes `count` sums (fp64 if `type` is, else fp32) as `type`.
void store_row(const void* sums, std::int64_t count, char* to, DType type);

}  // namespace coterie::kernels
