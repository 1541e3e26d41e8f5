// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/hash.hpp"

#include <cstddef>

namespace coterie {

Hash& Hash::add(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    state_ = (state_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3ULL;
  }
  return *this;
}

Hash& Hash::add(std::string_view text) {
  return add(std::as_bytes(std::span(text)));
}

Hash& Hash::add(std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) {
    const auto byte = static_cast<std::byte>((number >> static_cast<unsigned>(shift)) & 0xFFU);
    add(std::span(&byte, 1));
  }
  return *this;
}

std::uint64_t Hash::value() const {
  std::uint64_t z = state_;
  z = (z ^ (z >> 33U)) * 0xFF51AFD7ED558CCDULL;
  z = (z ^ (z >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return z ^ (z >> 33U);
}

std::string Hash::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  std::uint64_t rest = value();
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, rest >>= 4U) {
    *digit = kDigits[rest & 0xFU];
  }
  return text;
}

}  // namespace coterie
