// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/scratch.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <memory>
#include <new>

namespace coterie::kernels {

constexpr std::int64_t kHugePage = std::int64_t{1} << 21;

char* scratch_of_this_thread(std::int64_t bytes) {
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<char, Free> memory;
  thread_local std::int64_t size = 0;
  if (bytes > size) {
    memory.reset();
    size = 0;
    const std::int64_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    memory.reset(
        static_cast<char*>(std::aligned_alloc(kHugePage, static_cast<std::size_t>(whole))));
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
#if defined(__linux__)
    static_cast<void>(madvise(memory.get(), static_cast<std::size_t>(whole), MADV_HUGEPAGE));
#endif
    size = whole;
  }
  return memory.get();
}

}  // namespace coterie::kernels
