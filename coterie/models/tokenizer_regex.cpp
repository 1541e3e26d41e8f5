// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {

struct Regex::Compiled {
  std::string place;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, &pcre2_code_free};
  bool has_jit = false;
};

namespace {

constexpr std::size_t kLongestPattern = 20'000;
constexpr std::size_t kJitStackStart = std::size_t{64} << 10U;
constexpr std::size_t kJitStackLimit = std::size_t{16} << 20U;

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

/// What one thread needs to match; made once a thread and used for every pattern.
struct MatchState {
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data{
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{
      pcre2_match_context_create(nullptr), &pcre2_match_context_free};
  std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr), &pcre2_jit_stack_free};

  MatchState() {
    COTERIE_CHECK(data != nullptr && context != nullptr, "PCRE2: out of memory");
    if (stack != nullptr) {
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    }
  }
  static MatchState& of_this_thread() {
    thread_local MatchState state;
    return state;
  }
};

}  // namespace

Regex::Regex(std::string_view pattern, std::string place) : compiled_(new Compiled) {
  COTERIE_REQUIRE(pattern.size() <= kLongestPattern, place, ": the pattern has ", pattern.size(),
                  " bytes; at most ", kLongestPattern, " are allowed");
  const std::string translated = translate_pattern(pattern, place);
  int error = 0;
  std::size_t offset = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                      translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                      &error, &offset, context.get()));
  COTERIE_REQUIRE(compiled_->code != nullptr, place, ": cannot compile the pattern \"", pattern,
                  "\": ", message_of(error), " (at byte ", offset, " of \"", translated, "\")");
  compiled_->has_jit = pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled_->place = std::move(place);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::string Regex::escape(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool special =
        byte < 0x80 && std::string_view("\\.^$|?*+()[]{}-&#~").find(c) != std::string_view::npos;
    pattern += special ? std::string("\\") + c : std::string(1, c);
  }
  return pattern;
}

void Regex::find_all(std::string_view text, std::vector<ByteRange>& matches) const {
  MatchState& state = MatchState::of_this_thread();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  constexpr std::size_t kNone = PCRE2_UNSET;
  std::size_t start = 0;
  std::size_t last_end = kNone;
  while (start <= text.size()) {
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (compiled_->has_jit) {
      found = pcre2_jit_match(compiled_->code.get(), subject, text.size(), start, 0,
                              state.data.get(), state.context.get());
    }
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(compiled_->code.get(), subject, text.size(), start,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data.get(), nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      return;
    }
    COTERIE_REQUIRE(found >= 0, compiled_->place,
                    ": the pattern cannot be searched for in a text of ", text.size(),
                    " bytes (at byte ", start, "): ", message_of(found));
    const std::size_t* bounds = pcre2_get_ovector_pointer(state.data.get());
    const ByteRange match{bounds[0], bounds[1]};
    COTERIE_REQUIRE(match.begin >= start && match.begin <= match.end, compiled_->place,
                    ": the pattern's matches overlap");
    const bool is_empty = match.begin == match.end;
    if (!is_empty || match.begin != last_end) {
      matches.push_back(match);
      last_end = match.end;
    }
    start = match.end;
    if (is_empty) {
      start += start < text.size() ? utf8_length(text, start) : 1;
    }
  }
}

}  // namespace coterie::models
