// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/markup.hpp"

#include <cstdint>

namespace coterie::report {
namespace {

/// Bytes of the UTF-8 character at the front of `text`; 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  const bool is_overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool is_surrogate = first == 0xED && byte(1) >= 0xA0;
  const bool is_too_high = first == 0xF4 && byte(1) >= 0x90;
  return is_overlong || is_surrogate || is_too_high ? 0 : length;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length != 1) {
      out += length == 0 ? "\xEF\xBF\xBD" : text.substr(0, length);
      text.remove_prefix(length == 0 ? 1 : length);
      continue;
    }
    switch (text[0]) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7F ? ' ' : text[0];
    }
    text.remove_prefix(1);
  }
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t b = 0; b < 3; ++b) {
      group = group << 8U | (i + b < bytes.size() ? static_cast<std::uint8_t>(bytes[i + b]) : 0U);
    }
    for (std::size_t c = 0; c < 4; ++c) {
      const bool is_filling = i + c > bytes.size();
      out += is_filling ? '=' : kAlphabet[(group >> (18 - 6 * c)) & 0x3FU];
    }
  }
  return out;
}

}  // namespace coterie::report
