// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/matrix.hpp"

namespace coterie::report {

using Rgba = std::array<std::uint8_t, 4>;

/// A PNG picture (not compressed) of `pixels` [rows, columns], each an index into `palette` (at
/// most 256 colours, with opacity).
std::string encode_png(const Matrix<std::uint8_t>& pixels, const std::vector<Rgba>& palette);

}  // namespace coterie::report
