// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/text_sequences.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::evaluation {
namespace {

void check_options(const SequenceOptions& options, const models::ModelConfig& config) {
  COTERIE_REQUIRE(options.max_tokens >= 0, "max_tokens is ", options.max_tokens);
  COTERIE_REQUIRE(options.sequence_length >= 2 && options.sequence_length <= config.max_positions,
                  "sequence_length is ", options.sequence_length, ", not in [2, ",
                  config.max_positions, "], what the model allows");
  COTERIE_REQUIRE(options.batch_tokens >= 1, "batch_tokens is ", options.batch_tokens);
}

void add_text(const models::Tokenizer& tokenizer, const models::TextSource& text,
              const SequenceOptions& options, DomainSequences& domain) {
  const std::string content = read_text_file(text.file);
  COTERIE_REQUIRE(!content.empty(), text.file.string(), ": the file is empty");
  models::require_utf8(content, text.file.string());
  const auto tokens = models::encode_beginning(tokenizer, content, options.max_tokens);
  COTERIE_REQUIRE(!tokens.empty(), text.file.string(), ": the text gives no tokens");
  const auto length = static_cast<std::size_t>(options.sequence_length);
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    const std::size_t end = std::min(tokens.size(), begin + length);
    domain.sequences.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                  tokens.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

}  // namespace

std::int64_t DomainSequences::num_tokens() const {
  std::int64_t count = 0;
  for (const auto& sequence : sequences) {
    count += std::ssize(sequence);
  }
  return count;
}

std::vector<DomainSequences> read_domains(const models::Decoder& decoder,
                                          const models::Tokenizer& tokenizer,
                                          std::span<const models::TextSource> texts,
                                          const SequenceOptions& options) {
  check_options(options, decoder.config());
  COTERIE_REQUIRE(!texts.empty(), "no text to evaluate on");
  COTERIE_REQUIRE(tokenizer.vocab_size() <= decoder.config().vocab_size,
                  "the tokenizer has ids up to ", tokenizer.vocab_size() - 1,
                  ", the model's vocabulary has ", decoder.config().vocab_size,
                  ": they do not belong together");
  std::vector<DomainSequences> domains;
  for (const models::TextSource& text : texts) {
    auto found = std::find_if(domains.begin(), domains.end(), [&](const DomainSequences& domain) {
      return domain.domain == text.domain;
    });
    if (found == domains.end()) {
      found = domains.insert(domains.end(), {text.domain, {}});
    }
    add_text(tokenizer, text, options, *found);
  }
  return domains;
}

std::vector<std::size_t> cut_batches(const std::vector<std::vector<std::int32_t>>& sequences,
                                     std::int64_t batch_tokens) {
  std::vector<std::size_t> bounds = {0};
  std::int64_t tokens = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (s > bounds.back() && tokens + std::ssize(sequences[s]) > batch_tokens) {
      bounds.push_back(s);
      tokens = 0;
    }
    tokens += std::ssize(sequences[s]);
  }
  if (bounds.back() < sequences.size()) {
    bounds.push_back(sequences.size());
  }
  return bounds;
}

}  // namespace coterie::evaluation
