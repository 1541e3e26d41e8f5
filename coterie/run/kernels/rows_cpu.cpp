// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "coterie/run/kernels/bfloat16.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {
namespace {

constexpr std::int64_t kBlock = 512;  // columns summed at a time, in the first-level cache

/// sums[i] += weight * values[i]; a product, rounded, and an addition: the compiler may not fuse
/// them
/// (-ffp-contract=off).
void add_row(const float* values, float weight, std::int64_t count, float* sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] += weight * values[i];
  }
}
void add_row(const std::uint16_t* values, float weight, std::int64_t count, float* sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] += weight * from_bfloat16(values[i]);
  }
}

void store_sums(const float* sums, std::int64_t count, const MatrixView& to, std::int64_t to_row,
                std::int64_t column) {
  if (to.type == DType::kFloat32) {
    std::memcpy(to.row<float>(to_row) + column, sums, static_cast<std::size_t>(count) * 4);
    return;
  }
  std::uint16_t* const out = to.row<std::uint16_t>(to_row) + column;
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = to_bfloat16(sums[i]);
  }
}

}  // namespace

void copy_row_cpu(const ConstMatrixView& from, std::int64_t from_row, const MatrixView& to,
                  std::int64_t to_row) {
  if (to.columns == 0) {
    return;
  }
  const auto bytes = static_cast<std::size_t>(to.columns * size_of(to.type));
  auto* const target = to.row<char>(0) + to_row * to.row_stride * size_of(to.type);
  if (from_row < 0) {
    std::memset(target, 0, bytes);
  } else if (from.type == to.type) {
    std::memcpy(target, from.row<char>(0) + from_row * from.row_stride * size_of(from.type), bytes);
  } else if (to.type == DType::kBfloat16) {
    store_sums(from.row<float>(from_row), to.columns, to, to_row, 0);
  } else {
    const auto* const values = from.row<std::uint16_t>(from_row);
    std::transform(values, values + to.columns, to.row<float>(to_row), from_bfloat16);
  }
}

void merge_row_cpu(const ConstMatrixView& from, std::span<const std::int32_t> rows,
                   std::span<const float> weights, const MatrixView& to, std::int64_t to_row,
                   bool add) {
  std::array<float, kBlock> sums;
  for (std::int64_t column = 0; column < to.columns; column += kBlock) {
    const std::int64_t count = std::min(kBlock, to.columns - column);
    if (add) {
      std::memcpy(sums.data(), to.row<float>(to_row) + column, static_cast<std::size_t>(count) * 4);
    } else {
      std::fill_n(sums.begin(), count, 0.0F);
    }
    for (std::size_t j = 0; j < rows.size(); ++j) {
      if (rows[j] < 0) {
        continue;
      }
      const float weight = weights.empty() ? 1.0F : weights[j];
      if (from.type == DType::kFloat32) {
        add_row(from.row<float>(rows[j]) + column, weight, count, sums.data());
      } else {
        add_row(from.row<std::uint16_t>(rows[j]) + column, weight, count, sums.data());
      }
    }
    store_sums(sums.data(), count, to, to_row, column);
  }
}

}  // namespace coterie::kernels
