// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace coterie {

/// A 64-bit fingerprint of bytes fed in pieces (FNV-1a with a final mix). It detects accidents, not
/// attacks. The same on every machine; independent of how the bytes are cut into pieces.
class Hash {
 public:
  Hash& add(std::span<const std::byte> bytes);
  Hash& add(std::string_view text);
  /// Adds the eight little-endian bytes of a number.
  Hash& add(std::uint64_t number);
  [[nodiscard]] std::uint64_t value() const;
  /// 16 lower-case hexadecimal digits.
  [[nodiscard]] std::string hex() const;

 private:
  std::uint64_t state_ = 0xCBF29CE484222325ULL;
};

}  // namespace coterie
