// SPDX-License-Identifier: Apache-2.0
// Normalizers and pre-tokenizers. Behaviour follows `tokenizers`' documentation of Split.
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_parts.hpp"

namespace coterie::models {
namespace {

/// A stretch of a piece: a match or what lies between two matches.
struct Stretch {
  ByteRange range;
  bool is_match = false;
};

void find_numeric(std::string_view text, std::vector<ByteRange>& matches) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (is_numeric(utf8_at(text, at))) {
      matches.push_back({at, at + length});
    }
    at += length;
  }
}

/// Calls visit(stretch) over all of `text` in order; `invert` swaps matches and the rest.
template <typename Visit>
void for_each_stretch(std::size_t size, const std::vector<ByteRange>& matches, bool invert,
                      Visit&& visit) {
  std::size_t done = 0;
  for (const ByteRange& match : matches) {
    if (done != match.begin) {
      visit(Stretch{{done, match.begin}, invert});
    }
    visit(Stretch{match, !invert});
    done = match.end;
  }
  if (done != size) {
    visit(Stretch{{done, size}, invert});
  }
}

std::vector<ByteRange> merge_stretches(const std::vector<Stretch>& stretches,
                                       SplitBehavior behavior) {
  std::vector<ByteRange> merged;
  bool previous_is_match = false;
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
      if (stretch->is_match && !previous_is_match && !merged.empty()) {
        merged.back().begin = stretch->range.begin;
      } else {
        merged.push_back(stretch->range);
      }
      previous_is_match = stretch->is_match;
    }
    return {merged.rbegin(), merged.rend()};
  }
  for (const Stretch& stretch : stretches) {
    const bool joins = behavior == SplitBehavior::kContiguous
                           ? stretch.is_match == previous_is_match
                           : stretch.is_match && !previous_is_match;
    if (joins && !merged.empty()) {
      merged.back().end = stretch.range.end;
    } else {
      merged.push_back(stretch.range);
    }
    previous_is_match = stretch.is_match;
  }
  return merged;
}

void cut(std::string_view piece, const SplitStep& step, Pieces& pieces) {
  const auto keep = [&](const ByteRange& range) {
    if (range.begin < range.end) {
      pieces.next.push_back(piece.substr(range.begin, range.end - range.begin));
    }
  };
  if (step.behavior == SplitBehavior::kIsolated || step.behavior == SplitBehavior::kRemoved) {
    const bool drop_matches = step.behavior == SplitBehavior::kRemoved;
    for_each_stretch(piece.size(), pieces.matches, step.invert, [&](const Stretch& stretch) {
      if (!(drop_matches && stretch.is_match)) {
        keep(stretch.range);
      }
    });
    return;
  }
  std::vector<Stretch> stretches;
  for_each_stretch(piece.size(), pieces.matches, step.invert,
                   [&](const Stretch& stretch) { stretches.push_back(stretch); });
  for (const ByteRange& range : merge_stretches(stretches, step.behavior)) {
    keep(range);
  }
}

/// Spaces become `step.metaspace`, with one more in front where the scheme wants it.
std::string with_metaspaces(const SplitStep& step, std::string_view piece, bool begins_text) {
  std::string out;
  for (const char c : piece) {
    if (c == ' ') {
      out += step.metaspace;
    } else {
      out += c;
    }
  }
  const bool prepends = step.prepend_scheme == PrependScheme::kAlways ||
                        (step.prepend_scheme == PrependScheme::kFirst && begins_text);
  return prepends && !out.empty() && !out.starts_with(step.metaspace) ? step.metaspace + out : out;
}

}  // namespace

void apply_split(const SplitStep& step, Pieces& pieces) {
  pieces.next.clear();
  bool begins_text = pieces.begin_text;
  for (std::string_view piece : pieces.views) {
    if (!step.metaspace.empty()) {
      pieces.owned.push_back(with_metaspaces(step, piece, begins_text));
      piece = pieces.owned.back();
    }
    begins_text = false;
    if (step.add_prefix_space && piece.front() != ' ') {
      pieces.owned.push_back(" " + std::string(piece));
      piece = pieces.owned.back();
    }
    if (!step.cuts) {
      pieces.next.push_back(piece);
      continue;
    }
    pieces.matches.clear();
    if (step.pattern) {
      step.pattern->find_all(piece, pieces.matches);
    } else {
      find_numeric(piece, pieces.matches);
    }
    cut(piece, step, pieces);
  }
  std::swap(pieces.views, pieces.next);
}

std::string apply_normalizer(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    if (step.form) {
      out = normalize(out, *step.form);
    } else if (step.replace) {
      out = replace_all(out, *step.replace, step.replacement);
    } else if (!out.empty()) {
      out.insert(0, *step.prepend);
    }
  }
  return out;
}

}  // namespace coterie::models
