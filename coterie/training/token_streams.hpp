// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/models/models.hpp"

namespace coterie::training {

/// Text of one kind.
struct TextSource {
  std::string name;
  /// UTF-8 text files; `*.jsonl`, a JSON object with the member "text" a line, each line a document
  /// of its own; or token files: `*.tokens`, little-endian 16-bit token ids without a header.
  std::vector<std::string> files;
  double share = 1;  ///< of the sequences, relative to the other sources (mixture order)

  bool operator==(const TextSource&) const = default;
};

/// The tokens of one source, all files one after another.
struct TokenStream {
  std::string name;
  std::vector<std::int32_t> token_ids;
  std::int64_t num_bytes = 0;  ///< of the text; 0 for token files, which do not say

  /// A number that changes when the tokens do.
  [[nodiscard]] std::uint64_t fingerprint() const;
};

/// The texts of a `*.jsonl` file; kBadInput names file, line and what is wrong.
std::vector<std::string> read_json_lines_texts(const std::filesystem::path& path);

/// Reads the files of `source`; names are relative to `folder` unless absolute. `separator`, if not
/// negative, is put before each file's tokens. Texts are tokenised without special tokens of their
/// own. Errors name the file: kIo, kBadInput for text that is not UTF-8 or a token id that is not
/// below `vocab_size`.
TokenStream read_token_stream(const TextSource& source, const std::filesystem::path& folder,
                              const models::Tokenizer* tokenizer, std::int32_t separator,
                              std::int64_t vocab_size);

}  // namespace coterie::training
