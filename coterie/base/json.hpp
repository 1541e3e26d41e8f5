// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace coterie {

/// JSON values whose objects keep the order in which they were written.
using Json = nlohmann::ordered_json;

/// Parses text; an error (kBadInput) names `source`, line, column and what was met. Refuses
/// repeated keys in one object, numbers that overflow (1e400) and nesting deeper than 200 levels.
/// Linear in the length of the text.
Json parse_json(std::string_view text, const std::string& source);

/// Reads and parses a file.
Json read_json_file(const std::filesystem::path& path);

/// Writes JSON with two spaces of indent and a final newline, atomically. Arrays of numbers stay on
/// one line.
void write_json_file(const std::filesystem::path& path, const Json& value);

/// As written by write_json_file.
std::string format_json(const Json& value);

/// A place in a JSON document that knows its path, for typed reading whose errors (kBadInput) say
/// "FILE: /layers/3/top_k: expected a whole number in [1, 64], found "x"". It refers to the
/// document it was made from, which must outlive it.
class JsonReader {
 public:
  JsonReader(const Json& value, std::string source, std::string pointer = "");

  [[nodiscard]] bool has(const std::string& key) const;
  /// The member `key`; an error if this is no object or lacks it.
  [[nodiscard]] JsonReader at(const std::string& key) const;
  /// Item `index` of an array; an error if this is no array or is shorter.
  [[nodiscard]] JsonReader at(std::size_t index) const;
  /// Number of items of an array; an error if it is none.
  [[nodiscard]] std::size_t size() const;

  [[nodiscard]] std::int64_t as_int(
      std::int64_t low = std::numeric_limits<std::int64_t>::min(),
      std::int64_t high = std::numeric_limits<std::int64_t>::max()) const;
  [[nodiscard]] double as_double() const;
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::string as_string() const;
  [[nodiscard]] std::vector<std::int64_t> as_ints(std::int64_t low, std::int64_t high) const;

  [[nodiscard]] const Json& value() const { return *value_; }
  /// "FILE: /path" for messages.
  [[nodiscard]] std::string place() const;
  /// Throws kBadInput: place, then what was expected, then the value found.
  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  const Json* value_;
  std::string source_;
  std::string pointer_;
};

}  // namespace coterie
