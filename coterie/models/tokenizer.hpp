// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coterie::models {

/// A byte-pair-encoding tokenizer as Hugging Face's `tokenizers` writes it to tokenizer.json: the
/// same ids for the same text. Reads the normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace; the
/// pre-tokenizers ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Metaspace; models with
/// byte fallback; the post-processors TemplateProcessing and ByteLevel; the decoders ByteLevel,
/// Replace, ByteFallback, Fuse, Strip, Metaspace; and Sequences of them. Whatever else a file asks
/// for is refused by name (ErrorCode::kUnsupported), never ignored; only the file's `truncation`
/// and `padding` do not apply: no text is ever cut or filled up here. Thread-safe: one object
/// serves any number of threads.
class Tokenizer {
 public:
  /// Reads a tokenizer.json. kIo, kBadInput (malformed) and kUnsupported name the file and the
  /// place.
  static Tokenizer from_file(const std::filesystem::path& path);
  /// As from_file, from the file's text; errors name `source`.
  static Tokenizer from_json(std::string_view json, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of a UTF-8 text, with the special tokens that the post-processor puts around it
  /// if `add_special`. kBadInput names the byte offset of the first byte that is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view utf8,
                                                 bool add_special = true) const;

  /// The text of token ids, with special tokens left out if `skip_special`. Always UTF-8: bytes
  /// that are none (a character cut by the end of the ids) become U+FFFD. kBadInput names the
  /// position and value of an id that is no token.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> token_ids,
                                   bool skip_special = true) const;

  /// 1 + the largest id, added tokens included: every id lies in [0, vocab_size()).
  [[nodiscard]] std::int32_t vocab_size() const;
  /// Id of a token by its text as in the file (special tokens: their content).
  [[nodiscard]] std::optional<std::int32_t> token_to_id(std::string_view token) const;
  /// One line for people: "byte-level BPE, 50280 tokens, 50009 merges, NFC".
  [[nodiscard]] std::string summary() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  friend struct TokenizerLoader;
  friend class StreamingDecoder;
  std::unique_ptr<Parts> parts_;
};

/// Throws kBadInput "SOURCE: line 3, byte 17: 0xE9 is not UTF-8" if a text is not well formed.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace coterie::models
