// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/evaluation/text_sequences.hpp"

namespace coterie::evaluation {

/// How well a model predicts the texts of one domain.
struct DomainScore {
  std::string domain;
  std::int64_t num_tokens = 0;
  /// Of each sequence: -log2 p of its tokens but the first, and the bytes of these tokens. Two
  /// models that see the same sequences are compared sequence by sequence (paired_interval.hpp).
  std::vector<double> bits;
  std::vector<double> bytes;
  double replicas = 0;  ///< C_T: devices a token and MoE layer; 1 without a placement

  /// Sum of bits over sum of bytes.
  [[nodiscard]] double bits_per_byte() const;
};

/// Computes all sequences of all domains. The decoder's options say whether and how it prunes.
std::vector<DomainScore> score_domains(models::Decoder& decoder, const models::Tokenizer& tokenizer,
                                       const std::vector<DomainSequences>& domains,
                                       const SequenceOptions& options,
                                       Progress& progress = NoProgress::instance());

}  // namespace coterie::evaluation
