// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/models/models.hpp"

namespace coterie::evaluation {

struct SequenceOptions {
  std::int64_t max_tokens = 0;         ///< of each text; 0: all
  std::int64_t sequence_length = 512;  ///< texts are cut into sequences of so many tokens
  std::int64_t batch_tokens = 4096;    ///< tokens computed together, at least one sequence
};

/// Texts as the model sees them, cut into sequences.
struct DomainSequences {
  std::string domain;
  std::vector<std::vector<std::int32_t>> sequences;

  [[nodiscard]] std::int64_t num_tokens() const;
};

/// Reads and tokenizes texts (without special tokens); one entry a domain, in the order of their
/// first text. kBadInput and kIo name the file: no text, not UTF-8 (with the place), no tokens, a
/// tokenizer with more ids than the model.
std::vector<DomainSequences> read_domains(const models::Decoder& decoder,
                                          const models::Tokenizer& tokenizer,
                                          std::span<const models::TextSource> texts,
                                          const SequenceOptions& options);

/// Bounds [batches + 1] of runs of sequences that are computed together.
std::vector<std::size_t> cut_batches(const std::vector<std::vector<std::int32_t>>& sequences,
                                     std::int64_t batch_tokens);

}  // namespace coterie::evaluation
