// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/models/decoder.hpp"
#include "coterie/models/tokenizer.hpp"

namespace coterie::models {

/// A text file and the kind of text that it is.
struct TextSource {
  std::string domain;
  std::filesystem::path file;  ///< UTF-8
};

struct RecordOptions {
  std::int64_t max_tokens = 0;         ///< of each text; 0: all
  std::int64_t sequence_length = 512;  ///< texts are cut into sequences of so many tokens
  std::int64_t batch_tokens = 4096;    ///< tokens computed together, at least one sequence
  bool with_weights = false;           ///< routing weights are recorded too
  bool with_losses = false;            ///< bits per byte are computed (needs the model's head)
};

/// What was recorded of one domain.
struct DomainRecord {
  std::string domain;
  std::uint64_t num_files = 0;
  std::uint64_t num_sequences = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t num_bytes = 0;  ///< of the text of these tokens
  /// Bits of all tokens but the first of each sequence over the bytes of these tokens;
  /// with_losses only.
  std::optional<double> bits_per_byte;
};

/// Tokenizes texts, runs the model over them and writes which experts each token chose as a binary
/// routing trace. Rows carry sequence, position in it, and domain; domains stand in the order of
/// their first text. Texts are read one at a time; memory is that of one text and one batch.
/// Nothing appears at `out` unless all went well. Errors name the file: kBadInput for an empty
/// text, bytes that are not UTF-8 (with their offset), a tokenizer with more ids than the model.
std::vector<DomainRecord> record_trace(Decoder& decoder, const Tokenizer& tokenizer,
                                       std::span<const TextSource> texts,
                                       const RecordOptions& options,
                                       const std::filesystem::path& out,
                                       Progress& progress = NoProgress::instance());

/// Token ids of the beginning of a text: at most `max_tokens` (0: all), without special tokens.
/// Encodes no more of the text than it needs.
std::vector<std::int32_t> encode_beginning(const Tokenizer& tokenizer, std::string_view text,
                                           std::int64_t max_tokens);

}  // namespace coterie::models
