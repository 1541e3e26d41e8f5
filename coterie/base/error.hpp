// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace coterie {

/// What kind of thing went wrong. A face (command line, Python) translates it once.
enum class ErrorCode {
  kBadInput,     ///< the user's file, flag or value is wrong: exit code 2
  kIo,           ///< reading or writing failed (permissions, full disk): exit code 2
  kInfeasible,   ///< the request is well formed but has no solution: exit code 3
  kUnsupported,  ///< well formed, but not something this build or version does: exit code 2
  kPeer,         ///< another rank failed or is out of reach: exit code 4
  kInternal,     ///< a broken promise of our own code: exit code 1
};

/// Name of a code as users see it in JSON ("bad_input", "io", ...).
const char* name_of(ErrorCode code) noexcept;

/// Exit code that the command line gives for an error of this kind.
int exit_code_of(ErrorCode code) noexcept;

/// The one exception type of the library. `what()` says place and value.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Joins parts into one message with operator<<.
template <typename... Parts>
std::string join_message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws Error(code, parts joined).
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, join_message(parts...));
}

namespace detail {
[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& message);
}  // namespace detail

}  // namespace coterie

/// A promise of our own code that always holds; a breach is ErrorCode::kInternal. Prints the parts.
#define COTERIE_CHECK(condition, ...)                                      \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      ::coterie::detail::fail_check(__FILE__, __LINE__, #condition,        \
                                    ::coterie::join_message(__VA_ARGS__)); \
    }                                                                      \
  } while (false)

/// As COTERIE_CHECK, in debug builds only.
#ifdef NDEBUG
#define COTERIE_DCHECK(condition, ...) static_cast<void>(0)
#else
#define COTERIE_DCHECK(condition, ...) COTERIE_CHECK(condition, __VA_ARGS__)
#endif

/// An O(n) invariant, checked in builds that set COTERIE_AUDITS (the sanitizer presets do).
#ifdef COTERIE_AUDITS
#define COTERIE_AUDIT(condition, ...) COTERIE_CHECK(condition, __VA_ARGS__)
#else
#define COTERIE_AUDIT(condition, ...) static_cast<void>(0)
#endif

/// The caller's input is wrong: throws ErrorCode::kBadInput with the parts (say place and value).
#define COTERIE_REQUIRE(condition, ...)                              \
  do {                                                               \
    if (!(condition)) [[unlikely]] {                                 \
      ::coterie::fail(::coterie::ErrorCode::kBadInput, __VA_ARGS__); \
    }                                                                \
  } while (false)
