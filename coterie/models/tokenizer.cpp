// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer.hpp"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_parts.hpp"

namespace coterie::models {
namespace {

/// A word cache that is this encode's own until the end of it.
class BorrowedCache {
 public:
  BorrowedCache(std::mutex& mutex, std::vector<std::unique_ptr<WordCache>>& idle)
      : mutex_(mutex), idle_(idle) {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      cache_ = std::move(idle_.back());
      idle_.pop_back();
    }
    if (cache_ == nullptr) {
      cache_ = std::make_unique<WordCache>();
    }
  }
  BorrowedCache(const BorrowedCache&) = delete;
  BorrowedCache& operator=(const BorrowedCache&) = delete;
  ~BorrowedCache() {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cache_));
  }
  WordCache& operator*() { return *cache_; }

 private:
  std::mutex& mutex_;
  std::vector<std::unique_ptr<WordCache>>& idle_;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace

void require_utf8(std::string_view text, const std::string& source) {
  const std::size_t offset = find_invalid_utf8(text);
  if (offset == text.size()) {
    return;
  }
  const auto newlines =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
  std::ostringstream byte;
  byte << "0x" << std::uppercase << std::hex << std::setw(2) << std::setfill('0')
       << static_cast<unsigned>(static_cast<unsigned char>(text[offset]));
  const std::string_view start = text.substr(0, 2);
  const bool is_utf16 = start == "\xFF\xFE" || start == "\xFE\xFF";
  fail(ErrorCode::kBadInput, source, ": line ", newlines + 1, ", byte ", offset, ": ", byte.str(),
       " is not UTF-8", is_utf16 ? " (the text begins with a UTF-16 byte order mark)" : "");
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, bool add_special) const {
  require_utf8(utf8, "text");
  const Parts& parts = *parts_;
  BorrowedCache cache(parts.idle_mutex, parts.idle_caches);
  std::vector<std::int32_t> token_ids;
  if (add_special) {
    token_ids = parts.prefix;
  }
  Pieces pieces;
  const char* beginning = nullptr;
  const auto encode_plain = [&](std::string_view text) {
    pieces.owned.clear();
    pieces.begin_text = text.data() == beginning;
    pieces.views.assign(1, text);
    for (const SplitStep& step : parts.splits) {
      apply_split(step, pieces);
    }
    for (const std::string_view piece : pieces.views) {
      parts.model.encode(piece, *cache, token_ids);
    }
  };
  const auto cut_and_encode = [&](const AddedTokenFinder& finder, std::string_view text,
                                  const auto& encode_rest) {
    std::vector<TextPart> cuts;
    finder.split(text, cuts);
    for (const TextPart& cut : cuts) {
      if (cut.token_id >= 0) {
        token_ids.push_back(cut.token_id);
      } else {
        encode_rest(text.substr(cut.range.begin, cut.range.end - cut.range.begin));
      }
    }
  };
  cut_and_encode(parts.original_finder, utf8, [&](std::string_view text) {
    const std::string normalized = apply_normalizer(parts.normalizer, text);
    beginning = text.data() == utf8.data() ? normalized.data() : nullptr;
    cut_and_encode(parts.normalized_finder, normalized, encode_plain);
  });
  if (add_special) {
    token_ids.insert(token_ids.end(), parts.suffix.begin(), parts.suffix.end());
  }
  return token_ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> token_ids, bool skip_special) const {
  std::string bytes;
  std::vector<std::string> tokens;
  bool is_first = true;
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    const std::int32_t id = token_ids[i];
    COTERIE_REQUIRE(id >= 0 && id < vocab_size() && parts_->kind[static_cast<std::size_t>(id)] != 0,
                    "token ", i, ": id ", id, " is not in the tokenizer's vocabulary of ",
                    vocab_size());
    const auto index = static_cast<std::size_t>(id);
    if (skip_special && parts_->kind[index] == 2) {
      continue;
    }
    if (parts_->uses_steps) {
      tokens.push_back(parts_->decoded[index]);
      continue;
    }
    bytes += parts_->joins_with_spaces && !is_first ? " " : "";
    bytes += parts_->decoded[index];
    is_first = false;
  }
  return parts_->uses_steps ? parts_->decoder.decode(std::move(tokens))
                            : replace_invalid_utf8(bytes);
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(parts_->decoded.size());
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto added = parts_->added_ids.find(token);
  return added != parts_->added_ids.end() ? std::optional(added->second)
                                          : parts_->model.token_to_id(token);
}

std::string Tokenizer::summary() const {
  return parts_->summary;
}

}  // namespace coterie::models
