// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/strict_object.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::training {
namespace {

std::string list_of(const auto& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

StrictObject::StrictObject(const JsonReader& reader) : reader_(reader) {
  if (!reader_.value().is_object()) {
    reader_.refuse("an object");
  }
}

JsonReader StrictObject::required(const std::string& key) {
  known_.insert(key);
  return reader_.at(key);
}

void StrictObject::read(const std::string& key, std::int64_t& value, std::int64_t low,
                        std::int64_t high) {
  known_.insert(key);
  if (reader_.has(key)) {
    value = reader_.at(key).as_int(low, high);
  }
}

void StrictObject::read(const std::string& key, double& value, double low, double high) {
  known_.insert(key);
  if (reader_.has(key)) {
    value = reader_.at(key).as_double();
    if (!(value >= low && value <= high)) {
      reader_.at(key).refuse(join_message("a number in [", low, ", ", high, "]"));
    }
  }
}

void StrictObject::read(const std::string& key, bool& value) {
  known_.insert(key);
  if (reader_.has(key)) {
    value = reader_.at(key).as_bool();
  }
}

void StrictObject::read(const std::string& key, std::string& value) {
  known_.insert(key);
  if (reader_.has(key)) {
    value = reader_.at(key).as_string();
  }
}

void StrictObject::read(const std::string& key, std::vector<std::string>& value) {
  known_.insert(key);
  if (!reader_.has(key)) {
    return;
  }
  const JsonReader list = reader_.at(key);
  value.clear();
  for (std::size_t i = 0; i < list.size(); ++i) {
    value.push_back(list.at(i).as_string());
  }
}

void StrictObject::read_choice(const std::string& key, std::size_t& value,
                               const std::vector<std::string>& names) {
  std::string name = names.at(value);
  read(key, name);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    reader_.at(key).refuse("one of " + list_of(names));
  }
  value = static_cast<std::size_t>(found - names.begin());
}

void StrictObject::finish() const {
  for (const auto& [key, value] : reader_.value().items()) {
    COTERIE_REQUIRE(known_.contains(key), reader_.place(), ": unknown key \"", key,
                    "\"; known here: ", list_of(known_));
  }
}

}  // namespace coterie::training
