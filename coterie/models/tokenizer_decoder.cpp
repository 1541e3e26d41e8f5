// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_decoder.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_json.hpp"
#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {
namespace {

using Texts = std::vector<std::string>;
using Step = DecoderSteps::Step;

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

std::string joined(const Texts& texts) {
  return std::accumulate(texts.begin(), texts.end(), std::string());
}

Texts decode_bytes(const Texts& texts) {
  Texts out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) {
      return;
    }
    if (find_invalid_utf8(run) == run.size()) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (const std::string& text : texts) {
    if (const auto byte = byte_of_token(text)) {
      run.push_back(static_cast<char>(*byte));
    } else {
      flush();
      out.push_back(text);
    }
  }
  flush();
  return out;
}

void strip(const Step& step, std::string& text) {
  for (std::int64_t i = 0; i < step.start && text.starts_with(step.content); ++i) {
    text.erase(0, step.content.size());
  }
  for (std::int64_t i = 0; i < step.stop && text.ends_with(step.content); ++i) {
    text.erase(text.size() - step.content.size());
  }
}

void replace_metaspace(const Step& step, bool is_first, std::string& text) {
  const std::string with = is_first && step.drops_first ? "" : " ";
  for (std::size_t at = text.find(step.content); at != std::string::npos;
       at = text.find(step.content, at + with.size())) {
    text.replace(at, step.content.size(), with);
  }
}

std::string decode_byte_level(const Texts& texts) {
  static const ByteAlphabet kAlphabet;
  std::string bytes;
  for (const std::string& text : texts) {
    bytes += kAlphabet.to_bytes(text).value_or(text);
  }
  return replace_invalid_utf8(bytes);
}

Texts apply(const Step& step, Texts texts) {
  switch (step.kind) {
    case DecoderSteps::Kind::kByteFallback: return decode_bytes(texts);
    case DecoderSteps::Kind::kFuse: return {joined(texts)};
    case DecoderSteps::Kind::kByteLevel: return {decode_byte_level(texts)};
    default: break;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (step.kind == DecoderSteps::Kind::kReplace) {
      texts[i] = replace_all(texts[i], *step.pattern, step.content);
    } else if (step.kind == DecoderSteps::Kind::kStrip) {
      strip(step, texts[i]);
    } else {
      replace_metaspace(step, i == 0, texts[i]);
    }
  }
  return texts;
}

}  // namespace

std::optional<unsigned char> byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? std::nullopt
                             : std::optional(static_cast<unsigned char>(16 * high + low));
}

void DecoderSteps::add(const JsonReader& reader) {
  constexpr std::int64_t kMost = 1 << 20;
  Step step;
  const std::string type = type_of(reader);
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern.emplace(pattern_of(reader.at("pattern")));
    step.content = reader.at("content").as_string();
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = one_character(reader.at("content"));
    step.start = reader.at("start").as_int(0, kMost);
    step.stop = reader.at("stop").as_int(0, kMost);
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.content = one_character(reader.at("replacement"));
    step.drops_first = prepend_scheme_of(reader) != PrependScheme::kNever;
  } else {
    refuse_component(reader, "decoder", type,
                     "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence");
  }
  steps_.push_back(std::move(step));
}

bool DecoderSteps::is_byte_level() const {
  return steps_.size() == 1 && steps_[0].kind == Kind::kByteLevel;
}

bool DecoderSteps::has(Kind kind) const {
  return std::ranges::any_of(steps_, [&](const Step& step) { return step.kind == kind; });
}

bool DecoderSteps::needs_the_end() const {
  // A pattern that is replaced, or white space that is stripped, after texts were joined.
  bool is_fused = false;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteLevel ||
        (step.kind == Kind::kStrip && (step.stop > 0 || step.start > 1))) {
      return true;
    }
    if (is_fused && step.kind != Kind::kStrip && step.kind != Kind::kFuse) {
      return true;
    }
    is_fused |= step.kind == Kind::kFuse;
  }
  return false;
}

std::string DecoderSteps::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    tokens = apply(step, std::move(tokens));
  }
  return joined(tokens);
}

}  // namespace coterie::models
