// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace coterie::cli {

/// The value of --load-cap: a number of at least 1, or "none". kBadInput names flag and value.
std::optional<double> parse_load_cap(const std::string& text);

}  // namespace coterie::cli
