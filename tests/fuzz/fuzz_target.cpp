// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "coterie/base/error.hpp"

namespace coterie::fuzz {

std::vector<const Target*> targets() {
  return {COTERIE_FUZZ_TARGETS};
}

void read_safely(const Target& target, std::string_view bytes) {
  try {
    target.read(bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) {
      throw;
    }
  }
}

std::filesystem::path file_of(std::string_view bytes) {
  static const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  const auto size = static_cast<ssize_t>(bytes.size());
  COTERIE_CHECK(descriptor >= 0 && ::ftruncate(descriptor, size) == 0 &&
                    ::pwrite(descriptor, bytes.data(), bytes.size(), 0) == size,
                "cannot make a file in memory");
  return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace coterie::fuzz
