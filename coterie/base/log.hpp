// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coterie {

/// Where long work tells how far it is. The library never prints; a face (the command line, Python)
/// passes an object of its own. Calls come from one thread at a time.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A step called `what` begins; it has `total` units (0: not known).
  virtual void begin(std::string_view what, std::int64_t total) = 0;
  /// `done` units of the current step are finished.
  virtual void update(std::int64_t done) = 0;
  /// The current step ends.
  virtual void end() = 0;
  /// Something the user should know, but that is no error.
  virtual void warn(std::string_view message) = 0;
};

/// Says nothing: the default.
class NoProgress final : public Progress {
 public:
  void begin(std::string_view, std::int64_t) override {}
  void update(std::int64_t) override {}
  void end() override {}
  void warn(std::string_view) override {}
  /// One shared object for default arguments.
  static NoProgress& instance();
};

}  // namespace coterie
