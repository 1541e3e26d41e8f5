// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coterie::models {

/// Byte offset of the first ill-formed UTF-8 sequence (Unicode 3.9, table 3-7: no surrogates, no
/// overlong forms, nothing past U+10FFFF), or the text's size if it is all well formed.
std::size_t find_invalid_utf8(std::string_view text);

/// The text with every ill-formed sequence replaced by U+FFFD, one for each maximal subpart.
std::string replace_invalid_utf8(std::string_view bytes);

/// Length in bytes of the well-formed character at `offset`.
std::size_t utf8_length(std::string_view text, std::size_t offset);

/// The character at `offset` of well-formed text.
char32_t utf8_at(std::string_view text, std::size_t offset);

/// Appends one character.
void append_utf8(std::string& out, char32_t character);

/// A Unicode normalisation form.
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// `text` (well formed) in a normalisation form.
std::string normalize(std::string_view text, NormalForm form);

/// True for characters of general category N: what Unicode counts as numbers.
bool is_numeric(char32_t character);

/// The byte-level alphabet of GPT-2: every byte is one visible character. Printable Latin-1 bytes
/// stand for themselves, the others for U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The character that stands for a byte, in UTF-8.
  [[nodiscard]] const std::string& character(std::uint8_t byte) const { return characters_[byte]; }
  /// The bytes that a token's text stands for; nothing if it holds another character.
  [[nodiscard]] std::optional<std::string> to_bytes(std::string_view token) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<std::int16_t, 0x180> byte_of_;
};

}  // namespace coterie::models
