// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/models/model_config.hpp"

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
  std::string text(const char* key);                    ///< required
  std::vector<std::int64_t> integers(const char* key);  ///< absent: empty; elements >= 0
  /// >= 0, with a value if absent.
  std::int64_t count(std::initializer_list<const char*> spellings, std::int64_t absent);
  /// The base of the rotary embedding: `rope_parameters` (5) or `rope_theta` with `rope_scaling`
  /// (4). Scaled or partial embeddings are refused.
  double rope_theta();
  /// rope_theta, yarn and rotary_dim of a config whose head_dim is known. Kinds other than
  /// "default" and "yarn" are refused.
  void read_rope(ModelConfig& config);
  /// Rows and columns a scale of a checkpoint in fp8 (`quantization_config`); nothing without one,
  /// other quantizations are refused.
  std::optional<std::array<std::int64_t, 2>> fp8_blocks();
  [[nodiscard]] bool has(const char* key) const { return document_->contains(key); }
  /// The key has been dealt with.
  void pass_over(const char* key) { used_.insert(key); }
  /// Refuses every value of `key` but `known`, if the key is there.
  void only(const char* key, const std::string& known);
  /// As above, of a switch; the message ends with `reason`.
  void only(const char* key, bool known, const std::string& reason);
  /// Refuses a list, if it is there, with elements other than `known`.
  void all_of(const char* key, const std::string& known, std::int64_t most);
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
  void read_rope_object(const std::string& key, ModelConfig& config);

  const Json* document_;
  std::string file_;
  std::set<std::string> used_;
};

}  // namespace coterie::models
