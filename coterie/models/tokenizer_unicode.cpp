// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t offset) {
  return static_cast<std::uint8_t>(text[offset]);
}

/// What stands at one place: `size` bytes that are a character, or a maximal ill-formed subpart.
struct Sequence {
  std::size_t size;
  bool well_formed;
};

Sequence sequence_at(std::string_view text, std::size_t offset) {
  const std::uint8_t lead = byte_at(text, offset);
  if (lead < 0x80) {
    return {1, true};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {1, false};
  }
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    std::uint8_t low = 0x80;
    std::uint8_t high = 0xBF;
    if (i == 1) {
      low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : low;
      high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : high;
    }
    if (offset + i >= text.size() || byte_at(text, offset + i) < low ||
        byte_at(text, offset + i) > high) {
      return {i, false};
    }
  }
  return {length, true};
}

std::size_t skip_ascii(std::string_view text, std::size_t offset) {
  while (offset + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + offset, 8);
    if ((word & 0x8080808080808080ULL) != 0) {
      break;
    }
    offset += 8;
  }
  while (offset < text.size() && byte_at(text, offset) < 0x80) {
    ++offset;
  }
  return offset;
}

/// True if the text holds only characters below U+0300, which the form leaves alone.
bool is_surely_normal(std::string_view text, NormalForm form) {
  const std::uint8_t first_changing = form == NormalForm::kNfc ? 0xCC : 0x80;
  return std::none_of(text.begin(), text.end(),
                      [=](char c) { return static_cast<std::uint8_t>(c) >= first_changing; });
}

struct CharacterRange {
  char32_t first;
  char32_t last;
};

// Characters whose decomposition or combining class came after the tables (Unicode 9) of the
// normaliser that models are trained with: it leaves them alone, and so must we.
// tests/models/tokenizer_unicode_test.py finds them.
constexpr CharacterRange kLeftAlone[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_left_alone(char32_t character) {
  const auto* range =
      std::lower_bound(std::begin(kLeftAlone), std::end(kLeftAlone), character,
                       [](const CharacterRange& entry, char32_t c) { return entry.last < c; });
  return range != std::end(kLeftAlone) && range->first <= character;
}

/// The first character at or after `offset` that is ASCII or left alone; the text's size if none
/// is.
std::size_t find_run_end(std::string_view text, std::size_t offset) {
  while (offset < text.size() && byte_at(text, offset) >= 0x80 &&
         !is_left_alone(utf8_at(text, offset))) {
    offset += utf8_length(text, offset);
  }
  return offset;
}

void append_mapped(std::string& out, std::string_view text, NormalForm form, int options) {
  if (is_surely_normal(text, form)) {
    out += text;
    return;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  COTERIE_CHECK(size >= 0, "utf8proc: ", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t offset = skip_ascii(text, 0); offset < text.size();) {
    const Sequence sequence = sequence_at(text, offset);
    if (!sequence.well_formed) {
      return offset;
    }
    offset = skip_ascii(text, offset + sequence.size);
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t offset = 0; offset < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, offset);
    text += sequence.well_formed ? bytes.substr(offset, sequence.size) : "\xEF\xBF\xBD";
    offset += sequence.size;
  }
  return text;
}

std::size_t utf8_length(std::string_view text, std::size_t offset) {
  const std::uint8_t lead = byte_at(text, offset);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

char32_t utf8_at(std::string_view text, std::size_t offset) {
  const std::size_t length = utf8_length(text, offset);
  const std::uint8_t lead = byte_at(text, offset);
  char32_t character = length == 1 ? lead : lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    character = (character << 6U) | (byte_at(text, offset + i) & 0x3FU);
  }
  return character;
}

void append_utf8(std::string& out, char32_t character) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::string normalize(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  options |= form == NormalForm::kNfkc || form == NormalForm::kNfkd ? UTF8PROC_COMPAT : 0;
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  while (done < text.size()) {
    // An ASCII character never joins the one before it; the last one may join what follows.
    const std::size_t ascii_end = skip_ascii(text, done);
    const std::size_t begin =
        ascii_end < text.size() && ascii_end > done ? ascii_end - 1 : ascii_end;
    out += text.substr(done, begin - done);
    const std::size_t end = find_run_end(text, ascii_end);
    append_mapped(out, text.substr(begin, end - begin), form, options);
    // What is left alone joins nothing.
    done =
        end < text.size() && is_left_alone(utf8_at(text, end)) ? end + utf8_length(text, end) : end;
    out += text.substr(end, done - end);
  }
  return out;
}

bool is_numeric(char32_t character) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = printable ? byte : next++;
    append_utf8(characters_[byte], character);
    byte_of_[character] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::to_bytes(std::string_view token) const {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t offset = 0; offset < token.size(); offset += utf8_length(token, offset)) {
    const char32_t character = utf8_at(token, offset);
    if (character >= byte_of_.size() || byte_of_[character] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte_of_[character]));
  }
  return bytes;
}

}  // namespace coterie::models
