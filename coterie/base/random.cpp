// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/random.hpp"

#include <cmath>
#include <numbers>

namespace coterie {
namespace {

constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15ULL;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t stream)
    : state_(mix(seed + kGoldenGamma) ^ mix(mix(stream + 1) + kGoldenGamma)) {}

std::uint64_t Random::next() {
  state_ += kGoldenGamma;
  return mix(state_);
}

std::uint64_t Random::below(std::uint64_t bound) {
  // Values under the largest multiple of bound that fits are kept, so that none is likelier.
  const std::uint64_t limit = (0 - bound) % bound;  // 2^64 mod bound
  std::uint64_t value = next();
  while (value < limit) {
    value = next();
  }
  return value % bound;
}

double Random::uniform() {
  return static_cast<double>(next() >> 11U) * 0x1.0p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace coterie
