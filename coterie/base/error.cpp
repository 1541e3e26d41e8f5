// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"

namespace coterie {

const char* name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kBadInput: return "bad_input";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kInfeasible: return "infeasible";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kPeer: return "peer";
    case ErrorCode::kInternal: return "internal";
  }
  return "internal";
}

int exit_code_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kBadInput:
    case ErrorCode::kIo:
    case ErrorCode::kUnsupported: return 2;
    case ErrorCode::kInfeasible: return 3;
    case ErrorCode::kPeer: return 4;
    case ErrorCode::kInternal: return 1;
  }
  return 1;
}

namespace detail {
void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorCode::kInternal, join_message("internal check failed at ", file, ":", line, ": ",
                                                 condition, message.empty() ? "" : ": ", message));
}
}  // namespace detail

}  // namespace coterie
