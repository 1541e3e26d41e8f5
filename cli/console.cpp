// SPDX-License-Identifier: Apache-2.0
#include "cli/console.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 24;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool stderr_is_terminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

void write_to(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

/// Results that do not arrive are an error: a full disk behind `> file` must not pass for success.
void write_result(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail(ErrorCode::kIo, "standard output: cannot write: ", std::strerror(errno));
  }
}

}  // namespace

void Console::print(std::string_view text) {
  if (!json_ && !mute_) {
    write_result(text);
  }
}

void Console::emit(const Json& document) {
  if (json_ && !mute_) {
    write_result(format_json(document));
  }
}

void Console::begin(std::string_view what, std::int64_t total) {
  if (open_) {
    end();
  }
  open_ = true;
  what_ = what;
  total_ = total;
  done_ = 0;
  started_s_ = now_s();
  drawn_s_ = 0;
  draw(false);
}

void Console::update(std::int64_t done) {
  done_ = done;
  if (now_s() - drawn_s_ >= kRedrawSeconds) {
    draw(false);
  }
}

void Console::end() {
  if (open_) {
    draw(true);
    open_ = false;
  }
}

void Console::warn(std::string_view message) {
  if (!mute_) {
    write_to(stderr, (stderr_is_terminal() && open_ ? "\r\033[K" : "") +
                         ("warning: " + std::string(message)) + "\n");
  }
}

void Console::draw(bool final_state) {
  if (quiet_ || mute_) {
    return;
  }
  drawn_s_ = now_s();
  const double elapsed_s = drawn_s_ - started_s_;
  char time[48];
  std::snprintf(time, sizeof time, "%.1f s", elapsed_s);
  if (!stderr_is_terminal()) {
    // A log gets one line a step, when it ends.
    if (final_state) {
      write_to(stderr, what_ + ": " + time + "\n");
    }
    return;
  }
  std::string line = "\r\033[K" + what_;
  if (total_ > 0 && !final_state) {
    const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    const int filled = static_cast<int>(share * kBarWidth);
    line += " [" + std::string(static_cast<std::size_t>(filled), '#') +
            std::string(static_cast<std::size_t>(kBarWidth - filled), '.') + "] " +
            std::to_string(static_cast<int>(share * 100)) + "%";
    if (share > 0.02) {
      char left[48];
      std::snprintf(left, sizeof left, ", about %.0f s left", elapsed_s * (1 - share) / share);
      line += left;
    }
  } else {
    line += std::string(final_state ? ": " : " ... ") + time;
  }
  write_to(stderr, line + (final_state ? "\n" : ""));
}

}  // namespace coterie::cli
