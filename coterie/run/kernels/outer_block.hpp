// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: sums of outer products, as plain data for the vector kernels.
namespace coterie::kernels {

/// One side of the products: a matrix whose lines lie in memory one by one.
struct OuterOperand {
  const void* const* lines = nullptr;  ///< pointer of each line; null: line i is at base + i stride
  const char* base = nullptr;
  std::int64_t stride = 0;  ///< bytes
  std::int64_t offset = 0;  ///< bytes from the start of every line to what counts
  DType type = DType::kFloat32;
  bool by_depth = true;  ///< line k holds the elements of k; else line i holds all of its depth
};

/// sums[m][n] (+)= sum over k in ascending order of a(m, k) b(k, n): one chain of multiply-adds an
/// element, by one thread, whatever the sizes. A null line of `a` that is not by_depth counts as
/// zeros.
struct OuterBlock {
  OuterOperand a;                ///< num_rows x depth
  OuterOperand b;                ///< depth x num_columns
  std::int64_t num_rows = 0;     ///< at most kOuterRows
  std::int64_t num_columns = 0;  ///< at most kOuterColumns, with `few_rows` kOuterFewColumns
  std::int64_t depth = 0;
  void* sums = nullptr;          ///< row m at m * sums_stride; 64-byte aligned
  std::int64_t sums_stride = 0;  ///< elements: num_columns and up to a whole kOuterUnit
  bool start_from_sums = false;
  bool few_rows = false;    ///< b, which is by_depth, is used where it lies. Same bits
  char* scratch = nullptr;  ///< kOuterScratchBytes, 64-byte aligned
};

inline constexpr std::int64_t kOuterUnit = 48;  ///< a multiple of every back end's tile columns
inline constexpr std::int64_t kOuterRows = 144;
inline constexpr std::int64_t kOuterColumns = 192;
inline constexpr std::int64_t kOuterFewRows = 6;  ///< from here on packing pays
inline constexpr std::int64_t kOuterFewColumns = 3072;
inline constexpr std::int64_t kOuterDepthBytes = 1024;  ///< of one packed column, at most
inline constexpr std::int64_t kOuterScratchBytes =
    (kOuterRows + kOuterColumns) * kOuterDepthBytes + 4096;
inline constexpr std::int64_t kOuterSumsBytes = kOuterRows * kOuterColumns * 8;

static_assert(kOuterFewRows * kOuterFewColumns <= kOuterRows * kOuterColumns);

}  // namespace coterie::kernels
