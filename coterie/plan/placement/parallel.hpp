// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace coterie::placement {

/// Calls work(i) for every i in [0, count) on up to `num_threads` threads, the caller's among them.
/// If calls throw, the error of the lowest i that was tried is thrown after all threads stopped;
/// calls that had not begun are left out. Work of different i must not share what it changes.
void for_each_index(std::size_t count, std::int32_t num_threads,
                    const std::function<void(std::size_t)>& work);

}  // namespace coterie::placement
