// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: what happens to one row of sums, as plain data for the vector kernels.
namespace coterie::kernels {

/// What happens to the sums of a product before they are stored.
enum class Epilogue : std::uint8_t { kNone, kSwiGlu, kGelu, kGeluTanh };

/// Columns whose share of a routing weight's gradient is added up in one go.
inline constexpr std::int64_t kPartColumns = 48;

/// Some columns of one row of grouped_down_backward in fp32. Pointers stand at the first of them;
/// outputs that are null are not wanted.
struct DownBackwardRow {
  const float* d = nullptr;  ///< [count, padded to whole parts] down^T g
  std::int64_t count = 0;
  float weight = 1.0F;
  Epilogue activation = Epilogue::kNone;
  const char* pre = nullptr;         ///< gate, or all there is
  const char* pre_second = nullptr;  ///< up, for kSwiGlu
  std::int64_t pre_size = 4;         ///< bytes of an element
  DType pre_type = DType::kFloat32;
  char* grad = nullptr;  ///< grad_pre; may be pre
  char* grad_second = nullptr;
  std::int64_t grad_size = 4;
  DType grad_type = DType::kFloat32;
  char* hidden = nullptr;
  std::int64_t hidden_size = 4;
  DType hidden_type = DType::kFloat32;
  double* parts = nullptr;  ///< [ceil(count / kPartColumns)] sums of d * hidden
};

/// The sum of `count` <= kPartColumns products in double: eight chains, then pairwise.
double part_sum(const float* products, std::int64_t count);

}  // namespace coterie::kernels
