// SPDX-License-Identifier: Apache-2.0
// From the regular expressions of tokenizer.json (Oniguruma, Ruby syntax) to those of PCRE2.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_regex.hpp"
#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {
namespace {

// The property White_Space. PCRE2's own \s also holds U+180E.
constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kHex = "0-9a-fA-F";
// Oniguruma's word characters: letters, marks, decimal and letter numbers, connectors, the numbers
// of Latin-1, and the letters in circles and squares.
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

class PatternTranslator {
 public:
  PatternTranslator(std::string_view pattern, const std::string& place)
      : pattern_(pattern), place_(place) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        begin_atom();
        escape(false);
      } else if (c == '[') {
        begin_atom();
        bracket();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        close_group();
      } else if (c == '{') {
        interval();
      } else {
        if (std::string_view("?*+|").find(c) == std::string_view::npos) {
          begin_atom();
        }
        copy_character();
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kUnsupported, place_, ": the pattern \"", pattern_, "\" holds ", what,
         " (at byte ", at_, "), which is not supported");
  }
  void begin_atom() { atom_ = out_.size(); }
  void copy_character() {
    const std::size_t length = utf8_length(pattern_, at_);
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  void escape(bool in_bracket) {
    if (at_ + 1 >= pattern_.size()) {
      refuse("a lone backslash");
    }
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's': set(kSpaces, false, in_bracket); return;
      case 'S': set(kSpaces, true, in_bracket); return;
      case 'h': set(kHex, false, in_bracket); return;
      case 'H': set(kHex, true, in_bracket); return;
      case 'w': set(kWord, false, in_bracket); return;
      case 'W': set(kWord, true, in_bracket); return;
      case 'u': code_point(); return;
      case 'v': set("\\x0b", false, in_bracket); return;
      default: break;
    }
    if (std::string_view("bBGKyYXRQECcgkoOMNV0123456789").find(c) != std::string_view::npos) {
      refuse(std::string("\\") + c);
    }
    out_ += '\\';
    ++at_;
    copy_character();
    if ((c == 'p' || c == 'P' || c == 'x') && at_ < pattern_.size() && pattern_[at_] == '{') {
      const std::size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) {
        refuse("an unclosed brace");
      }
      out_ += pattern_.substr(at_, close + 1 - at_);
      at_ = close + 1;
    }
  }

  void set(std::string_view members, bool negated, bool in_bracket) {
    if (in_bracket && negated) {
      refuse("a negated set within brackets");
    }
    at_ += 2;
    out_ += in_bracket ? "" : negated ? "[^" : "[";
    out_ += members;
    out_ += in_bracket ? "" : "]";
  }

  void code_point() {
    if (at_ + 6 > pattern_.size() ||
        pattern_.substr(at_ + 2, 4).find_first_not_of("0123456789abcdefABCDEF") !=
            std::string_view::npos) {
      refuse("\\u without four hexadecimal digits");
    }
    out_ += "\\x{" + std::string(pattern_.substr(at_ + 2, 4)) + "}";
    at_ += 6;
  }

  void bracket() {
    out_ += '[';
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      copy_character();
    }
    for (bool first = true; at_ < pattern_.size(); first = false) {
      const char c = pattern_[at_];
      if (c == ']' && !first) {
        copy_character();
        return;
      }
      if (c == '[') {
        refuse("a bracket within brackets");
      }
      if (pattern_.substr(at_, 2) == "&&") {
        refuse("an intersection of sets");
      }
      if (c == '\\') {
        escape(true);
      } else {
        copy_character();
      }
    }
    refuse("an unclosed bracket");
  }

  void open_group() {
    groups_.push_back(out_.size());
    static constexpr std::string_view kOpenings[] = {"(?:", "(?=",  "(?!",   "(?<=", "(?<!",
                                                     "(?>", "(?i:", "(?-i:", "(?i)", "(?-i)"};
    if (pattern_.substr(at_, 2) != "(?") {
      out_ += "(?:";  // no group is ever referred to
      ++at_;
      return;
    }
    for (const std::string_view opening : kOpenings) {
      if (pattern_.substr(at_, opening.size()) == opening) {
        out_ += opening;
        at_ += opening.size();
        if (opening.back() == ')') {
          groups_.pop_back();
          if (out_.size() != opening.size()) {
            refuse("a flag that is not at the start");
          }
        }
        return;
      }
    }
    refuse("a group of this kind");
  }

  void close_group() {
    if (groups_.empty()) {
      refuse("an unmatched parenthesis");
    }
    atom_ = groups_.back();
    groups_.pop_back();
    copy_character();
  }

  void interval() {
    const std::size_t close = pattern_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 1, close - at_ - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos) {
      begin_atom();
      out_ += "\\{";  // a brace that is no interval stands for itself
      ++at_;
      return;
    }
    out_ += inside.front() == ',' ? "{0" : "{";
    out_ += inside;
    out_ += '}';
    at_ = close + 1;
    if (at_ < pattern_.size() && pattern_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  std::string_view pattern_;
  const std::string& place_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;  // where in out_ the last thing that a quantifier applies to begins
  std::vector<std::size_t> groups_;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& place) {
  return PatternTranslator(pattern, place).translate();
}

}  // namespace coterie::models
