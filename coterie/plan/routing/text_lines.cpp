// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/text_lines.hpp"

namespace coterie::routing {

std::optional<std::string_view> LineReader::next() {
  while (!text_.empty()) {
    const std::size_t end = text_.find('\n');
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    ++line_number_;
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    if (line.find_first_not_of(" \t") != std::string_view::npos) {
      return line;
    }
  }
  return std::nullopt;
}

std::string LineReader::place() const {
  return file_ + ": line " + std::to_string(line_number_);
}

}  // namespace coterie::routing
