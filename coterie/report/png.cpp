// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/png.hpp"

#include <algorithm>
#include <string_view>

namespace coterie::report {
namespace {

void append_number(std::string& out, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>((number >> shift) & 0xFFU);
  }
}

/// CRC-32 as PNG (ISO 3309) wants it, bit by bit: pictures are small.
std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
    }
  }
  return ~crc;
}

std::uint32_t adler32(std::string_view bytes) {
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char c : bytes) {
    a = (a + static_cast<std::uint8_t>(c)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16U | a;
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_number(out, static_cast<std::uint32_t>(data.size()));
  const std::string content = std::string(type) + std::string(data);
  out += content;
  append_number(out, crc32(content));
}

/// A zlib stream of stored blocks (RFC 1950, 1951).
std::string stored(std::string_view bytes) {
  constexpr std::size_t kMost = 65535;
  std::string out = "\x78\x01";
  std::string_view rest = bytes;
  do {
    const std::string_view block = rest.substr(0, kMost);
    rest.remove_prefix(block.size());
    const auto size = static_cast<std::uint16_t>(block.size());
    out += rest.empty() ? '\1' : '\0';
    for (const std::uint16_t number : {size, static_cast<std::uint16_t>(~size)}) {
      out += static_cast<char>(number & 0xFFU);
      out += static_cast<char>(number >> 8U);
    }
    out += block;
  } while (!rest.empty());
  append_number(out, adler32(bytes));
  return out;
}

}  // namespace

std::string encode_png(const Matrix<std::uint8_t>& pixels, const std::vector<Rgba>& palette) {
  std::string header;
  append_number(header, static_cast<std::uint32_t>(pixels.columns()));
  append_number(header, static_cast<std::uint32_t>(pixels.rows()));
  header += {8, 3, 0, 0, 0};  // eight bits, palette
  std::string colours;
  std::string opacity;
  for (const Rgba& colour : palette) {
    colours.append(colour.begin(), colour.begin() + 3);
    opacity += static_cast<char>(colour[3]);
  }
  std::string lines;
  for (std::size_t r = 0; r < pixels.rows(); ++r) {
    lines += '\0';  // no filter
    const auto row = pixels.row(r);
    lines.append(row.begin(), row.end());
  }
  std::string out = "\x89PNG\r\n\x1a\n";
  append_chunk(out, "IHDR", header);
  append_chunk(out, "PLTE", colours);
  append_chunk(out, "tRNS", opacity);
  append_chunk(out, "IDAT", stored(lines));
  append_chunk(out, "IEND", "");
  return out;
}

}  // namespace coterie::report
