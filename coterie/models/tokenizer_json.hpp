// SPDX-License-Identifier: Apache-2.0
// Reading the parts of tokenizer.json. Private to tokenizer*.cpp.
#pragma once

#include <string>
#include <string_view>

#include "coterie/base/json.hpp"
#include "coterie/models/tokenizer_regex.hpp"

namespace coterie::models {

bool is_set(const JsonReader& reader, const std::string& key);
/// An absent or null member is `otherwise`.
bool flag_of(const JsonReader& reader, const std::string& key, bool otherwise);
std::string type_of(const JsonReader& reader);

[[noreturn]] void refuse_component(const JsonReader& reader, std::string_view what,
                                   const std::string& type, std::string_view known);

/// {"String": "x"} or {"Regex": "x"} as a pattern.
Regex pattern_of(const JsonReader& reader);

/// A text of exactly one character.
std::string one_character(const JsonReader& reader);

/// Where Metaspace puts its character in front: of every piece, of a piece at the beginning of the
/// text, nowhere.
enum class PrependScheme { kAlways, kFirst, kNever };
/// Of a Metaspace component; older files say add_prefix_space.
PrependScheme prepend_scheme_of(const JsonReader& reader);

/// Calls visit(step) for a component, or for each of its members if it is a Sequence.
template <typename Visit>
void for_each_step(const JsonReader& reader, const std::string& members, const Visit& visit) {
  if (type_of(reader) != "Sequence") {
    visit(reader);
    return;
  }
  const JsonReader list = reader.at(members);
  for (std::size_t i = 0; i < list.size(); ++i) {
    for_each_step(list.at(i), members, visit);
  }
}

/// `text` with every match of a pattern replaced.
std::string replace_all(std::string_view text, const Regex& pattern, std::string_view replacement);

}  // namespace coterie::models
