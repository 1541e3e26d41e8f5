// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace coterie::cli {

/// kBadInput if writing `out` would destroy what the command reads: `out` is one of the inputs, or
/// lies in an input that is a folder. The message begins with the flag that named it.
void check_output(const std::filesystem::path& out,
                  const std::vector<std::filesystem::path>& inputs, const char* flag = "--out");

}  // namespace coterie::cli
