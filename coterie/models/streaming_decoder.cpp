// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/streaming_decoder.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_parts.hpp"

namespace coterie::models {
namespace {

/// Bytes at the end of `text` that begin a character but are not all of it.
std::size_t unfinished_bytes(std::string_view text) {
  const std::size_t most = std::min<std::size_t>(3, text.size());
  for (std::size_t count = 1; count <= most; ++count) {
    const auto lead = static_cast<unsigned char>(text[text.size() - count]);
    if ((lead & 0xC0U) == 0x80U) {
      continue;
    }
    const std::string_view tail = text.substr(text.size() - count);
    // Unfinished if some ending makes it well formed.
    const std::size_t length = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : lead >= 0xC2U ? 2 : 1;
    if (count >= length) {
      return 0;
    }
    for (const char next : {'\x80', '\x90', '\xA0', '\xBF'}) {
      std::string whole(tail);
      whole += next;
      whole.resize(length, '\x80');
      if (find_invalid_utf8(whole) == whole.size()) {
        return count;
      }
    }
    return 0;
  }
  return 0;
}

}  // namespace

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string StreamingDecoder::push(std::int32_t token_id) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  const auto index = static_cast<std::size_t>(token_id);
  COTERIE_REQUIRE(token_id >= 0 && index < parts.kind.size() && parts.kind[index] != 0, "id ",
                  token_id, " is not in the tokenizer's vocabulary of ", parts.kind.size());
  if (skip_special_ && parts.kind[index] == 2) {
    return "";
  }
  if (!parts.uses_steps) {
    bytes_ += parts.joins_with_spaces && !is_first_ ? " " : "";
    bytes_ += parts.decoded[index];
    is_first_ = false;
    return flush_bytes(false);
  }
  held_.push_back(token_id);
  const bool waits =
      parts.decoder.needs_the_end() || (parts.decoder.has(DecoderSteps::Kind::kByteFallback) &&
                                        byte_of_token(parts.decoded[index]).has_value());
  return waits ? "" : flush_tokens();
}

std::string StreamingDecoder::finish() {
  std::string text = tokenizer_.parts_->uses_steps ? flush_tokens() : flush_bytes(true);
  is_first_ = true;
  before_.clear();
  return text;
}

std::string StreamingDecoder::flush_bytes(bool is_end) {
  const std::size_t kept = is_end ? 0 : unfinished_bytes(bytes_);
  std::string text = replace_invalid_utf8(std::string_view(bytes_).substr(0, bytes_.size() - kept));
  bytes_.erase(0, bytes_.size() - kept);
  return text;
}

/// The held tokens behind the last one that is out, so that they are not taken for the beginning
/// of a text; less what that one gives alone.
std::string StreamingDecoder::flush_tokens() {
  std::vector<std::int32_t> both = before_;
  both.insert(both.end(), held_.begin(), held_.end());
  const std::size_t known = tokenizer_.decode(before_, skip_special_).size();
  std::string text = tokenizer_.decode(both, skip_special_).substr(known);
  if (!held_.empty()) {
    before_.assign(1, held_.back());
  }
  held_.clear();
  return text;
}

}  // namespace coterie::models
