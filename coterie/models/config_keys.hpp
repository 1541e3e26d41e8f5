// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "coterie/base/json.hpp"

namespace coterie::models {

/// Typed reading of config.json that remembers which keys were used, so that the rest can be
/// refused. A key whose value is null counts as absent. Where a key has several spellings, the
/// first is used in messages; two spellings with different values are refused.
class ConfigKeys {
 public:
  ConfigKeys(const Json& document, std::string file);

  std::int64_t size(std::initializer_list<const char*> spellings);  ///< required, >= 1
  std::optional<std::int64_t> optional_size(std::initializer_list<const char*> spellings);
  double positive(const char* key);  ///< required, > 0
  std::optional<double> optional_positive(const char* key);
  bool flag(const char* key, bool absent);
  std::string text(const char* key);  ///< required
  /// The base of the rotary embedding: `rope_parameters` (5) or `rope_theta` with `rope_scaling`
  /// (4). Scaled or partial embeddings are refused.
  double rope_theta();
  /// Refuses every value of `key` but `known`, if the key is there.
  void only(const char* key, const std::string& known);
  /// Refuses keys that nobody read and that are not known to be without effect on the result.
  void finish() const;

  [[nodiscard]] const std::string& file() const { return file_; }
  /// Throws kUnsupported: file, key, value, reason.
  [[noreturn]] void unsupported(const std::string& key, const Json& value,
                                const std::string& reason) const;

 private:
  const Json* find(std::initializer_list<const char*> spellings);
  JsonReader reader(const char* key) const { return JsonReader(*document_, file_).at(key); }
  void check_rope(const Json& rope, const std::string& key) const;

  const Json* document_;
  std::string file_;
  std::set<std::string> used_;
};

}  // namespace coterie::models
