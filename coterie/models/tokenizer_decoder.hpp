// SPDX-License-Identifier: Apache-2.0
// How the texts of tokens become one text. Private to tokenizer*.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coterie/models/tokenizer_regex.hpp"

namespace coterie {
class JsonReader;
}

namespace coterie::models {

/// Steps of a decoder as SentencePiece-style files have them: each makes a list of texts of a list
/// of texts, which are joined in the end. Meanings are those of `tokenizers`:
///
///   Replace       every match of a pattern in each text becomes another text
///   ByteFallback  a run of texts "<0x41>" becomes the characters of its bytes; a run that is not
///                 UTF-8 becomes one U+FFFD a byte, all of it
///   Fuse          joins all texts
///   Strip         takes up to `start` characters `content` off the front of each text and up to
///                 `stop` off its end
///   Metaspace     the replacement becomes a space, but nothing in the first text unless its scheme
///                 is "never"
///   ByteLevel     joins all texts; characters of the byte alphabet are bytes
///
/// Thread-safe.
class DecoderSteps {
 public:
  enum class Kind { kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kByteLevel };
  struct Step {
    Kind kind = Kind::kFuse;
    std::optional<Regex> pattern;
    std::string content;  ///< Replace: the new text; Strip and Metaspace: the character
    std::int64_t start = 0;
    std::int64_t stop = 0;
    bool drops_first = false;  ///< Metaspace
  };

  /// Appends a step; kUnsupported names its place and those that are known.
  void add(const JsonReader& reader);
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// True if ByteLevel is the only step.
  [[nodiscard]] bool is_byte_level() const;
  [[nodiscard]] bool has(Kind kind) const;
  /// True if what comes later may change what came before, runs of bytes aside.
  [[nodiscard]] bool needs_the_end() const;
  [[nodiscard]] std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<Step> steps_;
};

/// The byte that a token "<0x41>" stands for.
std::optional<unsigned char> byte_of_token(const std::string& token);

}  // namespace coterie::models
