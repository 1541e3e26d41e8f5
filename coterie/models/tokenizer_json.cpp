// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer_json.hpp"

#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer_unicode.hpp"

namespace coterie::models {

bool is_set(const JsonReader& reader, const std::string& key) {
  return reader.has(key) && !reader.value().at(key).is_null();
}

bool flag_of(const JsonReader& reader, const std::string& key, bool otherwise) {
  return is_set(reader, key) ? reader.at(key).as_bool() : otherwise;
}

std::string type_of(const JsonReader& reader) {
  return reader.at("type").as_string();
}

void refuse_component(const JsonReader& reader, std::string_view what, const std::string& type,
                      std::string_view known) {
  fail(ErrorCode::kUnsupported, reader.place(), ": the ", what, " ", type,
       " is not supported; known are ", known);
}

Regex pattern_of(const JsonReader& reader) {
  if (reader.has("String")) {
    const std::string text = reader.at("String").as_string();
    COTERIE_REQUIRE(!text.empty(), reader.place(), ": the pattern is empty");
    return {Regex::escape(text), reader.place()};
  }
  return {reader.at("Regex").as_string(), reader.place()};
}

std::string one_character(const JsonReader& reader) {
  std::string text = reader.as_string();
  if (text.empty() || find_invalid_utf8(text) != text.size() ||
      utf8_length(text, 0) != text.size()) {
    reader.refuse("one character");
  }
  return text;
}

PrependScheme prepend_scheme_of(const JsonReader& reader) {
  if (!is_set(reader, "prepend_scheme")) {
    return flag_of(reader, "add_prefix_space", true) ? PrependScheme::kAlways
                                                     : PrependScheme::kNever;
  }
  const JsonReader scheme = reader.at("prepend_scheme");
  const std::string name = scheme.as_string();
  if (name != "always" && name != "first" && name != "never") {
    scheme.refuse("always, first or never");
  }
  return name == "always"  ? PrependScheme::kAlways
         : name == "first" ? PrependScheme::kFirst
                           : PrependScheme::kNever;
}

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view replacement) {
  std::vector<ByteRange> matches;
  pattern.find_all(text, matches);
  std::string out;
  std::size_t done = 0;
  for (const ByteRange& match : matches) {
    out += text.substr(done, match.begin - done);
    out += replacement;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

}  // namespace coterie::models
