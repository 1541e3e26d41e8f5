// SPDX-License-Identifier: Apache-2.0
#include "tests/folders.hpp"

namespace coterie::tests {

std::filesystem::path source_dir() {
  return COTERIE_SOURCE_DIR;
}
std::filesystem::path binary_dir() {
  return COTERIE_BINARY_DIR;
}
std::filesystem::path shared_dir() {
  return COTERIE_SHARED_DIR;
}

}  // namespace coterie::tests
