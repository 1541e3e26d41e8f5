// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Private to the room: who computes which outputs.
namespace coterie::kernels {

/// Outputs that a thread takes at least, but for an expert's last.
inline constexpr std::int64_t kShareUnit = 48;

/// Output columns [begin, end) of one expert; begin is a multiple of kShareUnit.
struct ColumnShare {
  std::size_t expert = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Splits all outputs of all experts into one list of neighbouring shares a thread, about equal in
/// work. The split depends on the sizes and the number of threads alone. offsets: [E + 1] rows of
/// the experts.
std::vector<std::vector<ColumnShare>> share_columns(std::span<const std::int64_t> offsets,
                                                    std::int64_t num_columns, int num_threads);

}  // namespace coterie::kernels
