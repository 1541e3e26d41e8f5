// SPDX-License-Identifier: Apache-2.0
// What a tokenizer is made of. Private to tokenizer*.cpp.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coterie/models/tokenizer.hpp"
#include "coterie/models/tokenizer_added.hpp"
#include "coterie/models/tokenizer_bpe.hpp"
#include "coterie/models/tokenizer_decoder.hpp"
#include "coterie/models/tokenizer_json.hpp"
#include "coterie/models/tokenizer_regex.hpp"
#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {

/// One step of the normalizer: exactly one of the three is set.
struct NormalizerStep {
  std::optional<NormalForm> form;
  std::optional<std::string> prepend;
  std::optional<Regex> replace;
  std::string replacement;
};

/// What becomes of the matches of a split, and of what lies between them.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// One step of the pre-tokenizer: cuts every piece into smaller ones.
struct SplitStep {
  std::optional<Regex> pattern;  ///< nothing: the matches are single numeric characters (Digits)
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< what the pattern does not match counts as the match
  bool cuts = true;     ///< false: ByteLevel or Metaspace that only add their prefix
  bool add_prefix_space = false;
  std::string metaspace;  ///< Metaspace: the character that stands for a space
  PrependScheme prepend_scheme = PrependScheme::kNever;
};

/// Pieces of a text during pre-tokenization; views into the text or into `owned`.
struct Pieces {
  std::vector<std::string_view> views;
  std::vector<std::string_view> next;
  std::deque<std::string> owned;
  std::vector<ByteRange> matches;
  bool begin_text = true;  ///< whether the first of them is the beginning of the text
};

/// Applies one step to all pieces.
void apply_split(const SplitStep& step, Pieces& pieces);

/// Applies the steps of a normalizer in order.
std::string apply_normalizer(const std::vector<NormalizerStep>& steps, std::string_view text);

struct Tokenizer::Parts {
  explicit Parts(const BpeDescription& description) : model(description) {}

  BpeModel model;
  bool is_byte_level = false;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added_tokens;
  AddedTokenFinder original_finder;    // tokens sought in the text as given
  AddedTokenFinder normalized_finder;  // tokens sought after normalisation
  TextMap<std::int32_t> added_ids;
  std::vector<std::int32_t> prefix;  // special tokens before and after every text
  std::vector<std::int32_t> suffix;
  bool joins_with_spaces = false;  // decode without a decoder
  bool uses_steps = false;         // decode by `decoder`, else tokens add `decoded` alone
  DecoderSteps decoder;
  std::vector<std::string> decoded;  // id -> what it adds to a decoded text, or its text
  std::vector<char> kind;            // id -> 0: no token, 1: a token, 2: a special token
  std::string summary;

  // Word caches that no encode uses at present.
  mutable std::mutex idle_mutex;
  mutable std::vector<std::unique_ptr<WordCache>> idle_caches;
};

}  // namespace coterie::models
