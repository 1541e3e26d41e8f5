// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coterie::report {

/// An aligned table for terminals. Text is UTF-8; each code point takes one column.
class TextTable {
 public:
  /// The first column is set flush left, the others flush right.
  explicit TextTable(std::vector<std::string> columns);

  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells);
  /// A line of dashes before the next row.
  void add_rule();
  /// The table, each line indented by `indent` blanks; no line ends in blanks.
  [[nodiscard]] std::string text(std::size_t indent = 2) const;

 private:
  std::vector<std::vector<std::string>> rows_;  ///< an empty row is a rule
};

/// "3.71": that many digits behind the point, the same in every locale; "-" for infinity and NaN.
std::string fixed(double value, int digits = 2);
/// "12.3 MB": decimal units, three digits.
std::string human_bytes(std::uint64_t bytes);
/// "65,915".
std::string grouped(std::uint64_t number);
/// "-32 %", "+5 %", "0 %": change from `before` to `after`.
std::string percent_change(double before, double after);

}  // namespace coterie::report
