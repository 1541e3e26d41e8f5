// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::training {

/// Reads the members of a JSON object, each at most once and with a default, and refuses what
/// nobody asked for: a misspelt key is an error that names it and the known ones.
class StrictObject {
 public:
  explicit StrictObject(const JsonReader& reader);

  [[nodiscard]] bool has(const std::string& key) const { return reader_.has(key); }
  /// The member; kBadInput if it is missing.
  JsonReader required(const std::string& key);

  void read(const std::string& key, std::int64_t& value, std::int64_t low, std::int64_t high);
  /// low <= value <= high.
  void read(const std::string& key, double& value, double low, double high);
  void read(const std::string& key, bool& value);
  void read(const std::string& key, std::string& value);
  void read(const std::string& key, std::vector<std::string>& value);
  /// One out of `names`; gives its index.
  void read_choice(const std::string& key, std::size_t& value,
                   const std::vector<std::string>& names);
  /// Refuses keys that were not read.
  void finish() const;

 private:
  JsonReader reader_;
  std::set<std::string> known_;
};

}  // namespace coterie::training
