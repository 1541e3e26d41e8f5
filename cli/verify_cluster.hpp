// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "cli/console.hpp"

namespace coterie::cli {

/// True if the file says that it is a cluster profile.
bool is_cluster_profile(const std::filesystem::path& path);

/// Reads and judges a cluster profile. kBadInput if it is damaged or off by more than 25%; smaller
/// doubts are told.
void verify_cluster_profile(const std::filesystem::path& path, Console& console);

}  // namespace coterie::cli
