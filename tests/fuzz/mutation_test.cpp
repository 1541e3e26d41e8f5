// SPDX-License-Identifier: Apache-2.0
// Damages valid files at random, always in the same way, and reads them: each must be read or
// refused with an Error. What the fuzzers do for hours with clang, this does for seconds with any
// compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.hpp"

namespace coterie::fuzz {
namespace {

constexpr const char* kNumbers[] = {"-1",
                                    "0",
                                    "1",
                                    "7",
                                    "255",
                                    "65536",
                                    "1e9",
                                    "0.5",
                                    "2147483648",
                                    "4294967295",
                                    "1e400",
                                    "null",
                                    "true",
                                    "\"\"",
                                    "[]",
                                    "{}",
                                    "9223372036854775807",
                                    "18446744073709551615"};
constexpr std::uint64_t kWords[] = {0,          1,          0x7F,       0xFF,  0xFFFF,
                                    0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, ~0ULL, 1ULL << 63U};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : engine_(seed) {}

  std::string mutate(const std::vector<std::string>& seeds) {
    std::string bytes = seeds[below(seeds.size())];
    const std::size_t times = 1 + below(4);
    for (std::size_t i = 0; i < times; ++i) {
      mutate_once(bytes, seeds);
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : engine_() % end; }

  void mutate_once(std::string& bytes, const std::vector<std::string>& seeds) {
    const std::size_t at = below(bytes.size());
    const std::size_t length = std::min(below(below(4) == 0 ? 200 : 9), bytes.size() - at);
    switch (below(9)) {
      case 0:
        if (!bytes.empty()) {
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        }
        break;
      case 1: bytes.erase(at, length); break;
      case 2: bytes.insert(at, bytes.substr(at, length)); break;
      case 3: bytes.resize(at); break;
      case 4:
        for (std::size_t i = at; i < at + length; ++i) {
          bytes[i] = static_cast<char>(below(256));
        }
        break;
      case 5: {
        const std::uint64_t word = kWords[below(std::size(kWords))];
        for (std::size_t i = 0; i < 8 && at + i < bytes.size(); ++i) {
          bytes[at + i] = static_cast<char>(word >> (8 * i));
        }
        break;
      }
      case 6: {
        const std::string& other = seeds[below(seeds.size())];
        const std::size_t from = below(other.size());
        bytes.replace(at, length, other.substr(from, below(64)));
        break;
      }
      default: replace_number(bytes, at); break;
    }
  }

  /// The next run of digits becomes another value.
  void replace_number(std::string& bytes, std::size_t from) {
    const std::size_t begin = bytes.find_first_of("0123456789", from);
    if (begin == std::string::npos) {
      return;
    }
    const std::size_t end = std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
    bytes.replace(begin, end - begin, kNumbers[below(std::size(kNumbers))]);
  }

  std::mt19937_64 engine_;
};

class Mutation : public testing::TestWithParam<const Target*> {};

TEST_P(Mutation, SeedsAreValid) {
  for (const std::string& seed : GetParam()->seeds()) {
    EXPECT_NO_THROW(GetParam()->read(seed)) << seed;
  }
}

TEST_P(Mutation, DamagedFilesAreReadOrRefused) {
  const std::vector<std::string> seeds = GetParam()->seeds();
  Mutator mutator(20);
  for (int round = 0; round < 4000; ++round) {
    const std::string bytes = mutator.mutate(seeds);
    try {
      read_safely(*GetParam(), bytes);
    } catch (const std::exception& error) {
      FAIL() << "round " << round << ": " << error.what() << "\n" << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, Mutation, testing::ValuesIn(targets()),
                         [](const auto& one) { return std::string(one.param->name); });

}  // namespace
}  // namespace coterie::fuzz
