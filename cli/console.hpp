// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"

namespace coterie::cli {

/// Where a command speaks: people's text or one JSON document on standard output, progress and
/// warnings on standard error. In a run of several ranks only rank 0 speaks.
class Console final : public Progress {
 public:
  /// --json: one JSON document on standard output and nothing else there.
  [[nodiscard]] bool json() const { return json_; }
  void set_json(bool json) { json_ = json; }
  void set_quiet(bool quiet) { quiet_ = quiet; }
  /// Ranks other than 0 say nothing at all, errors excepted.
  void set_mute(bool mute) { mute_ = mute; }

  /// Text for people on standard output; dropped under --json.
  void print(std::string_view text);
  /// The command's JSON document on standard output; dropped without --json.
  void emit(const Json& document);

  void begin(std::string_view what, std::int64_t total) override;
  void update(std::int64_t done) override;
  void end() override;
  void warn(std::string_view message) override;

 private:
  void draw(bool final_state);

  bool json_ = false;
  bool quiet_ = false;
  bool mute_ = false;
  bool open_ = false;
  std::string what_;
  std::int64_t total_ = 0;
  std::int64_t done_ = 0;
  double started_s_ = 0;
  double drawn_s_ = 0;
};

}  // namespace coterie::cli
