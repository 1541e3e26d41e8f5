// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace coterie {

/// A small seeded generator (SplitMix64) whose every number is fixed by (seed, stream, count), the
/// same on every machine. Not thread-safe: give each thread or task its own stream.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0);

  /// 64 random bits.
  std::uint64_t next();
  /// A whole number in [0, bound), without bias. bound > 0.
  std::uint64_t below(std::uint64_t bound);
  /// A real number in [0, 1) with 53 random bits.
  double uniform();
  /// A standard normal number (Box-Muller, one value a call).
  double normal();

  /// Shuffles in place (Fisher-Yates).
  template <typename T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(i))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace coterie
