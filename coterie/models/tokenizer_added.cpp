// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_added.hpp"

#include <algorithm>

#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Where the character that ends at `end` begins.
std::size_t character_before(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder()
    : token_at_node_{-1}, word_character_("[" + std::string(kRustWord) + "]", "added tokens") {}

void AddedTokenFinder::add(const AddedToken& token) {
  const std::string& content = token.content;
  if (content.empty()) {
    return;
  }
  std::uint64_t node = 0;
  for (const char c : content) {
    const std::uint64_t edge = (node << 8U) | static_cast<unsigned char>(c);
    const auto [found, is_new] =
        edges_.try_emplace(edge, static_cast<std::uint32_t>(token_at_node_.size()));
    if (is_new) {
      token_at_node_.push_back(-1);
    }
    node = found->second;
  }
  is_first_byte_[static_cast<unsigned char>(content.front())] = true;
  token_at_node_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::size_t AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  std::size_t longest = tokens_.size();
  std::uint64_t node = 0;
  for (; at < text.size(); ++at) {
    const auto edge = edges_.find((node << 8U) | static_cast<unsigned char>(text[at]));
    if (edge == edges_.end()) {
      break;
    }
    node = edge->second;
    if (token_at_node_[node] >= 0) {
      longest = static_cast<std::size_t>(token_at_node_[node]);
    }
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPart>& parts) const {
  const auto touches_word = [&](std::size_t begin, std::size_t end) {
    std::vector<ByteRange> found;
    word_character_.find_all(text.substr(begin, end - begin), found);
    return !found.empty();
  };
  std::size_t done = 0;  // text before this is in `parts`
  for (std::size_t at = 0; at < text.size();) {
    if (!is_first_byte_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const std::size_t index = longest_at(text, at);
    if (index == tokens_.size()) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    ByteRange range{at, at + tokens_[index].content.size()};
    at = range.end;
    if (token.single_word &&
        ((range.begin > 0 && touches_word(character_before(text, range.begin), range.begin)) ||
         (range.end < text.size() &&
          touches_word(range.end, range.end + utf8_length(text, range.end))))) {
      continue;
    }
    while (token.lstrip && range.begin > done) {
      const std::size_t before = character_before(text, range.begin);
      if (!is_white_space(utf8_at(text, before))) {
        break;
      }
      range.begin = before;
    }
    while (token.rstrip && range.end < text.size() && is_white_space(utf8_at(text, range.end))) {
      range.end += utf8_length(text, range.end);
    }
    range.begin = std::max(range.begin, done);
    range.end = std::max(range.end, done);
    if (done < range.begin) {
      parts.push_back({{done, range.begin}, -1});
    }
    parts.push_back({range, token.id});
    done = range.end;
  }
  if (done < text.size()) {
    parts.push_back({{done, text.size()}, -1});
  }
}

}  // namespace coterie::models
