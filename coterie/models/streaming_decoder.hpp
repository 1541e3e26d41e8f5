// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/models/tokenizer.hpp"

namespace coterie::models {

/// Text of tokens that come one by one, as in generation: every push gives the text that is final,
/// so that a character whose bytes come in several tokens is printed once it is whole, and
///
///     all pushes, one behind the other, then finish()  ==  Tokenizer::decode of all ids
///
/// for any ids. Files with byte fallback hold a run of byte tokens back until it ends, since bytes
/// that are no UTF-8 change the whole run. The tokenizer must outlive the decoder. Not thread-safe.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool skip_special = true);

  /// The text that this token makes final: UTF-8, often empty. kBadInput for an id that is no
  /// token, naming it; the decoder stays as it was.
  std::string push(std::int32_t token_id);
  /// What was held back; then as new.
  std::string finish();

 private:
  std::string flush_bytes(bool is_end);
  std::string flush_tokens();

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string bytes_;                 // byte-level: not yet a whole character
  bool is_first_ = true;              // no token has given text yet
  std::vector<std::int32_t> before_;  // other decoders: the last token whose text is out
  std::vector<std::int32_t> held_;    // and those that are not
};

}  // namespace coterie::models
