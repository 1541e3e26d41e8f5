// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

/// Where things lie on this machine. One file knows, so that all others compile to the same bytes in
/// every clone and come out of the compiler cache.
namespace coterie::tests {

std::filesystem::path source_dir();  ///< the clone
std::filesystem::path binary_dir();  ///< its build folder
std::filesystem::path shared_dir();  ///< real routing data; may be absent: then a test skips

}  // namespace coterie::tests
