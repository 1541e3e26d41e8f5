// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coterie::models {

/// A half-open range of bytes.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// The word characters of Rust's regex crate (UTS 18, annex C: alphabetic, mark, decimal number,
/// connector, join control), to stand within brackets.
inline constexpr std::string_view kRustWord =
    R"(\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

/// Rewrites a pattern of the Oniguruma dialect that tokenizer.json files are written in (Ruby
/// syntax, Unicode) to one of PCRE2 with the same meaning: `\s` is White_Space, `\h` a hexadecimal
/// digit, `{2,3}+` repeats (it is not possessive), `{,3}` starts at 0. Refuses (kUnsupported,
/// naming `place`) what has no equal: word boundaries, set operations, flags other than `i`.
std::string translate_pattern(std::string_view pattern, const std::string& place);

/// A compiled regular expression over well-formed UTF-8. Thread-safe.
class Regex {
 public:
  /// `pattern` as written in tokenizer.json; errors name `place`.
  Regex(std::string_view pattern, std::string place);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// A pattern that matches `text` and nothing else.
  static std::string escape(std::string_view text);

  /// Appends all matches in `text`, left to right, without overlap; an empty match just after
  /// another match does not count. kBadInput if the search exceeds the engine's limits.
  void find_all(std::string_view text, std::vector<ByteRange>& matches) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace coterie::models
