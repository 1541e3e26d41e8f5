// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/text_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::report {
namespace {

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

TextTable::TextTable(std::vector<std::string> columns) {
  COTERIE_CHECK(!columns.empty(), "a table without columns");
  rows_.push_back(std::move(columns));
  add_rule();
}

void TextTable::add_row(std::vector<std::string> cells) {
  COTERIE_CHECK(cells.size() == rows_[0].size(), cells.size(), " cells in ", rows_[0].size(),
                " columns");
  rows_.push_back(std::move(cells));
}

void TextTable::add_rule() {
  rows_.emplace_back();
}

std::string TextTable::text(std::size_t indent) const {
  std::vector<std::size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], width_of(row[c]));
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < widths.size(); ++c) {
      line += c == 0 ? "" : "  ";
      if (row.empty()) {
        line += std::string(widths[c], '-');
        continue;
      }
      const std::string blanks(widths[c] - width_of(row[c]), ' ');
      line += c == 0 ? row[c] + blanks : blanks + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) {
    return "-";
  }
  std::array<char, 400> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::fixed, digits);
  std::string text(buffer.data(), end.ptr);
  const bool is_zero = text.find_first_not_of("-0.") == std::string::npos;
  return is_zero && text[0] == '-' ? text.substr(1) : text;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fixed(value, digits) + " " + kUnits[unit];
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string percent_change(double before, double after) {
  if (before == 0) {
    return "-";
  }
  const std::string text = fixed(100 * (after / before - 1), 0);
  return (text[0] == '-' || text == "0" ? text : "+" + text) + " %";
}

}  // namespace coterie::report
