// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace coterie::placement {

void for_each_index(std::size_t count, std::int32_t num_threads,
                    const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&] {
    for (std::size_t i = next++; i < count && !failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(1, num_threads)));
    for (std::size_t t = 1; t < wanted; ++t) {
      threads.emplace_back(run);
    }
    run();
  }
  for (const auto& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace coterie::placement
