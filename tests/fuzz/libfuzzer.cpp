// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry for the one target that COTERIE_FUZZ_TARGETS names.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const coterie::fuzz::Target& target = *coterie::fuzz::targets().front();
  coterie::fuzz::read_safely(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
