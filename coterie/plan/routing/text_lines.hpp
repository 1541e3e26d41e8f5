// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What the readers of text formats share. Not part of the room's door.
namespace coterie::routing {

/// Walks over the lines of a text; a line end is "\n" or "\r\n", a last line needs none.
class LineReader {
 public:
  LineReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  /// The next line that is not blank, or nothing at the end.
  std::optional<std::string_view> next();
  /// "FILE: line N" of the line that next() gave, for messages.
  [[nodiscard]] std::string place() const;
  [[nodiscard]] std::uint64_t line_number() const { return line_number_; }

 private:
  std::string_view text_;
  std::string file_;
  std::uint64_t line_number_ = 0;
};

}  // namespace coterie::routing
