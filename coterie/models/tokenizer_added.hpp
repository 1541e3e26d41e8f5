// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coterie/models/tokenizer_regex.hpp"

namespace coterie::models {

/// A token that is found in the text before anything else is done with it.
struct AddedToken {
  std::string content;  ///< as it is sought and decoded: normalised if `normalized`
  std::int32_t id = 0;
  bool special = false;      ///< left out by decode
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space on its left with it
  bool rstrip = false;       ///< and on its right
  bool normalized = false;   ///< sought in the normalised text, not in the original
};

/// A piece of text, or an added token (token_id >= 0) that stands in its place.
struct TextPart {
  ByteRange range;
  std::int32_t token_id = -1;
};

/// Finds added tokens: the leftmost, of those the longest. Thread-safe after construction.
class AddedTokenFinder {
 public:
  AddedTokenFinder();
  void add(const AddedToken& token);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  /// Appends `text` cut at the tokens, in order.
  void split(std::string_view text, std::vector<TextPart>& parts) const;

 private:
  /// Index of the longest token that begins at `at`; tokens_.size() if none does.
  [[nodiscard]] std::size_t longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> is_first_byte_{};
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // (node << 8 | byte) -> node
  std::vector<std::int32_t> token_at_node_;                 // index into tokens_, or -1
  Regex word_character_;
};

}  // namespace coterie::models
