// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_bpe.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

// Scanning all pairs for the best one beats a queue up to about this many symbols.
constexpr std::size_t kShortWord = 48;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U) |
         static_cast<std::uint32_t>(right);
}

std::size_t slot_of(std::uint64_t pair, std::size_t slots) {
  pair *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(pair ^ (pair >> 32U)) & (slots - 1);
}

/// Of a word's bytes; never 0.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15ULL;
  const char* data = word.data();
  std::size_t left = word.size();
  while (left > 0) {
    const std::size_t take = std::min<std::size_t>(left, 8);
    std::uint64_t chunk = 0;
    std::memcpy(&chunk, data, take);
    hash = (hash ^ chunk) * 0xD6E8FEB86659FD93ULL;
    hash ^= hash >> 32U;
    data += take;
    left -= take;
  }
  return hash | 1U << 31U;
}

/// "<0x41>"
std::string byte_token(std::uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

}  // namespace

WordCache::WordCache() : slots_(kSlots) {}

std::size_t WordCache::slot_for(std::string_view word, std::uint64_t hash) const {
  std::size_t at = hash & (kSlots - 1);
  while (slots_[at].hash != 0) {
    const Slot& slot = slots_[at];
    if (slot.hash == hash && slot.text_size == word.size() &&
        std::memcmp(texts_.data() + slot.text_at, word.data(), word.size()) == 0) {
      break;
    }
    at = (at + 1) & (kSlots - 1);
  }
  return at;
}

bool WordCache::append_tokens(std::string_view word, std::vector<std::int32_t>& out) const {
  const Slot& slot = slots_[slot_for(word, hash_of(word))];
  if (slot.hash == 0) {
    return false;
  }
  const auto begin = ids_.begin() + slot.ids_at;
  out.insert(out.end(), begin, begin + slot.ids_size);
  return true;
}

void WordCache::insert(std::string_view word, std::span<const std::int32_t> token_ids) {
  if (word.size() > kLongestWord) {
    return;
  }
  if (num_words_ == kMostWords) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    texts_.clear();
    ids_.clear();
    num_words_ = 0;
  }
  const std::uint64_t hash = hash_of(word);
  slots_[slot_for(word, hash)] = {
      hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(word.size()),
      static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint32_t>(token_ids.size())};
  texts_ += word;
  ids_.insert(ids_.end(), token_ids.begin(), token_ids.end());
  ++num_words_;
}

BpeModel::BpeModel(const BpeDescription& description)
    : is_byte_level_(description.is_byte_level),
      ignore_merges_(description.ignore_merges),
      fuse_unknown_(description.fuse_unknown),
      byte_fallback_(description.byte_fallback) {
  const std::string& place = description.place;
  const ByteAlphabet alphabet;
  ids_.reserve(description.vocabulary.size());
  for (const auto& [token, id] : description.vocabulary) {
    COTERIE_REQUIRE(id >= 0 && id <= kLargestTokenId, place, "/vocab: token \"", token,
                    "\" has id ", id, "; expected one in [0, ", kLargestTokenId, "]");
    const auto index = static_cast<std::size_t>(id);
    if (index >= tokens_.size()) {
      tokens_.resize(index + 1);
      is_token_.resize(index + 1, 0);
    }
    COTERIE_REQUIRE(is_token_[index] == 0, place, "/vocab: tokens \"", tokens_[index], "\" and \"",
                    token, "\" share id ", id);
    COTERIE_REQUIRE(ids_.emplace(token, id).second, place, "/vocab: token \"", token,
                    "\" stands twice");
    tokens_[index] = token;
    is_token_[index] = 1;
    if (ignore_merges_) {
      const auto bytes = is_byte_level_ ? alphabet.to_bytes(token) : token;
      if (bytes) {
        whole_words_.emplace(*bytes, id);
      }
    }
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<std::uint8_t>(byte);
    byte_ids_[byte] =
        token_to_id(byte_fallback_ ? byte_token(value) : alphabet.character(value)).value_or(-1);
  }
  if (description.unknown_token) {
    const auto unknown = token_to_id(*description.unknown_token);
    COTERIE_REQUIRE(unknown, place, "/unk_token: \"", *description.unknown_token,
                    "\" is not in the vocabulary");
    unknown_id_ = *unknown;
  }
  read_merges(description);
}

void BpeModel::read_merges(const BpeDescription& description) {
  const auto& merges = description.merges;
  table_.resize(std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 16)));
  std::int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const auto left_id = token_to_id(left);
    const auto right_id = token_to_id(right);
    const auto merged_id = token_to_id(left + right);
    COTERIE_REQUIRE(left_id && right_id && merged_id, description.place, "/merges/", rank, ": \"",
                    left, "\" + \"", right, "\": ",
                    !left_id    ? left
                    : !right_id ? right
                                : left + right,
                    " is not in the vocabulary");
    add_merge({pair_of(*left_id, *right_id), rank++, *merged_id});
  }
  num_merges_ = merges.size();
}

void BpeModel::add_merge(const Merge& merge) {
  std::size_t slot = slot_of(merge.pair, table_.size());
  while (table_[slot].pair != kNoPair && table_[slot].pair != merge.pair) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  table_[slot] = merge;  // of a pair listed twice, the last rank counts
}

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t slot = slot_of(pair, table_.size());
  while (table_[slot].pair != pair) {
    if (table_[slot].pair == kNoPair) {
      return nullptr;
    }
    slot = (slot + 1) & (table_.size() - 1);
  }
  return &table_[slot];
}

void BpeModel::encode(std::string_view word, WordCache& cache,
                      std::vector<std::int32_t>& out) const {
  if (cache.append_tokens(word, out)) {
    return;
  }
  std::vector<std::int32_t> symbols;
  const auto whole = ignore_merges_ ? whole_words_.find(word) : whole_words_.end();
  if (whole != whole_words_.end()) {
    symbols.push_back(whole->second);
  } else {
    split_into_symbols(word, symbols);
    if (symbols.size() <= kShortWord) {
      merge_short(symbols);
    } else {
      merge_long(symbols);
    }
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  cache.insert(word, symbols);
}

/// The byte tokens of a character if all are in the vocabulary.
bool BpeModel::append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const {
  const std::size_t before = symbols.size();
  for (const char c : character) {
    const std::int32_t id = byte_ids_[static_cast<std::uint8_t>(c)];
    if (id < 0) {
      symbols.resize(before);
      return false;
    }
    symbols.push_back(id);
  }
  return true;
}

void BpeModel::split_into_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.reserve(word.size());
  // An unknown character waits for the next that is known: byte tokens in between come before it,
  // as `tokenizers` has it.
  bool has_unknown = false;
  const auto put_unknown = [&] {
    if (has_unknown) {
      symbols.push_back(unknown_id_);
    }
    has_unknown = false;
  };
  for (std::size_t offset = 0; offset < word.size();) {
    const std::size_t length = is_byte_level_ ? 1 : utf8_length(word, offset);
    const std::string_view character = word.substr(offset, length);
    offset += length;
    std::int32_t id = -1;
    if (is_byte_level_) {
      id = byte_ids_[static_cast<std::uint8_t>(character[0])];
    } else if (const auto found = ids_.find(character); found != ids_.end()) {
      id = found->second;
    }
    if (id >= 0) {
      put_unknown();
      symbols.push_back(id);
    } else if (!(byte_fallback_ && append_bytes(character, symbols)) && unknown_id_ >= 0) {
      if (!fuse_unknown_) {
        put_unknown();
      }
      has_unknown = true;
    }
  }
  put_unknown();
}

void BpeModel::merge_short(std::vector<std::int32_t>& symbols) const {
  // merges[i]: the merge of symbols i and i + 1, or null.
  std::array<const Merge*, kShortWord> merges{};
  std::size_t size = symbols.size();
  for (std::size_t i = 0; i + 1 < size; ++i) {
    merges[i] = find_merge(symbols[i], symbols[i + 1]);
  }
  while (size > 1) {
    const Merge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < size; ++i) {
      if (merges[i] != nullptr && (best == nullptr || merges[i]->rank < best->rank)) {
        best = merges[i];
        at = i;
      }
    }
    if (best == nullptr) {
      break;
    }
    symbols[at] = best->merged_id;
    for (std::size_t i = at + 1; i + 1 < size; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --size;
    merges[size - 1] = nullptr;
    if (at + 1 < size) {
      merges[at] = find_merge(symbols[at], symbols[at + 1]);
    }
    if (at > 0) {
      merges[at - 1] = find_merge(symbols[at - 1], symbols[at]);
    }
  }
  symbols.resize(size);
}

void BpeModel::merge_long(std::vector<std::int32_t>& symbols) const {
  // A linked list of symbols and a queue of possible merges; an entry whose pair has changed since
  // is skipped.
  struct Entry {
    std::int32_t rank;
    std::int32_t at;
    std::uint64_t pair;
    std::int32_t merged_id;
    bool operator>(const Entry& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  const auto size = static_cast<std::int32_t>(symbols.size());
  std::vector<std::int32_t> next(symbols.size());
  std::vector<std::int32_t> previous(symbols.size());
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto symbol = [&](std::int32_t at) -> std::int32_t& {
    return symbols[static_cast<std::size_t>(at)];
  };
  const auto link = [](std::vector<std::int32_t>& list, std::int32_t at) -> std::int32_t& {
    return list[static_cast<std::size_t>(at)];
  };
  const auto consider = [&](std::int32_t at) {
    const std::int32_t right = link(next, at);
    const Merge* merge = right < size ? find_merge(symbol(at), symbol(right)) : nullptr;
    if (merge != nullptr) {
      queue.push({merge->rank, at, merge->pair, merge->merged_id});
    }
  };
  for (std::int32_t at = 0; at < size; ++at) {
    link(next, at) = at + 1;
    link(previous, at) = at - 1;
  }
  for (std::int32_t at = 0; at < size; ++at) {
    consider(at);
  }
  while (!queue.empty()) {
    const Entry best = queue.top();
    queue.pop();
    const std::int32_t right = symbol(best.at) < 0 ? size : link(next, best.at);
    if (right >= size || pair_of(symbol(best.at), symbol(right)) != best.pair) {
      continue;
    }
    symbol(best.at) = best.merged_id;
    symbol(right) = -1;
    const std::int32_t after = link(next, right);
    link(next, best.at) = after;
    if (after < size) {
      link(previous, after) = best.at;
    }
    consider(best.at);
    if (link(previous, best.at) >= 0) {
      consider(link(previous, best.at));
    }
  }
  std::erase(symbols, -1);
}

std::optional<std::int32_t> BpeModel::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::id_to_token(std::int32_t token_id) const {
  const auto index = static_cast<std::size_t>(token_id);
  const bool exists = token_id >= 0 && index < tokens_.size() && is_token_[index] != 0;
  return exists ? &tokens_[index] : nullptr;
}

}  // namespace coterie::models
