// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

/// nullptr, or the message of what `call` threw; valid until the thread's next call.
template <typename Call>
const char* guarded(const Call& call) {
  static thread_local std::string message;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
