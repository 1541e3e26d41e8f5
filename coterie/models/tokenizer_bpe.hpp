// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {

/// Lets string_view keys be looked up without making a string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// No vocabulary is larger; what a file may make us allocate is bounded by it.
inline constexpr std::int32_t kLargestTokenId = (1 << 22) - 1;

/// The words met so far and their tokens, so that a common word is merged once. Bounded: it starts
/// anew when it is full. Not thread-safe; every thread that encodes uses one of its own.
class WordCache {
 public:
  WordCache();
  /// Appends the tokens of a word and returns true if the word is known.
  bool append_tokens(std::string_view word, std::vector<std::int32_t>& out) const;
  void insert(std::string_view word, std::span<const std::int32_t> token_ids);

 private:
  struct Slot {
    std::uint64_t hash = 0;  // 0: free
    std::uint32_t text_at = 0;
    std::uint32_t text_size = 0;
    std::uint32_t ids_at = 0;
    std::uint32_t ids_size = 0;
  };
  static constexpr std::size_t kSlots = 1U << 17U;
  static constexpr std::size_t kMostWords = kSlots / 2;
  static constexpr std::size_t kLongestWord = 128;
  [[nodiscard]] std::size_t slot_for(std::string_view word, std::uint64_t hash) const;

  std::vector<Slot> slots_;
  std::string texts_;
  std::vector<std::int32_t> ids_;
  std::size_t num_words_ = 0;
};

/// What tokenizer.json says of the model.
struct BpeDescription {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;  ///< token text as in the file, id
  std::vector<std::pair<std::string, std::string>> merges;       ///< in order of rank
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
  bool byte_fallback = false;  ///< an unknown character is the tokens "<0x41>" of its bytes
  bool is_byte_level = false;  ///< words are bytes (the ByteLevel alphabet), not characters
  std::string place;           ///< "FILE: /model" for messages
};

/// Byte pair encoding (Sennrich et al. 2016, section 3.2): adjacent symbols are merged, lowest rank
/// first, leftmost first among equals. Thread-safe.
class BpeModel {
 public:
  /// Errors (kBadInput): ids that are negative, repeated or absurd, merges of unknown tokens.
  explicit BpeModel(const BpeDescription& description);

  /// Appends the tokens of one word (a piece that the pre-tokenizer cut): raw bytes if the model is
  /// byte-level, else UTF-8.
  void encode(std::string_view word, WordCache& cache, std::vector<std::int32_t>& out) const;

  /// Id of a token by its text as in the file.
  [[nodiscard]] std::optional<std::int32_t> token_to_id(std::string_view token) const;
  /// Text of a token as in the file; null if there is no such id.
  [[nodiscard]] const std::string* id_to_token(std::int32_t token_id) const;
  /// 1 + the largest id.
  [[nodiscard]] std::int32_t id_end() const { return static_cast<std::int32_t>(tokens_.size()); }
  [[nodiscard]] std::size_t num_merges() const { return num_merges_; }
  [[nodiscard]] bool has_byte_fallback() const { return byte_fallback_; }

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0;
    std::int32_t merged_id = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void add_merge(const Merge& merge);
  void read_merges(const BpeDescription& description);
  bool append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const;
  void split_into_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols) const;

  bool is_byte_level_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  std::int32_t unknown_id_ = -1;
  TextMap<std::int32_t> ids_;          // text as in the file -> id
  std::vector<std::string> tokens_;    // id -> text as in the file
  std::vector<char> is_token_;         // id -> whether there is such a token
  TextMap<std::int32_t> whole_words_;  // what a word holds (bytes or text) -> id; for ignore_merges
  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Merge> table_;  // open addressing; a power of two
  std::size_t num_merges_ = 0;
};

}  // namespace coterie::models
