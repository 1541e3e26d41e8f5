// SPDX-License-Identifier: Apache-2.0
#include "cli/self_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "coterie/base/error.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coterie::cli {
namespace {

struct Finished {
  int exit_code = 0;
  std::string output;
};

/// Starts a process with its standard output in a pipe, reads all of it and waits.
Finished run_process(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  COTERIE_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

  std::vector<char*> pointers;
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  pid_t child = 0;
  const int failure =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failure != 0) {
    ::close(ends[0]);
    fail(ErrorCode::kIo, "cannot start ", arguments[0], ": ", std::strerror(failure));
  }

  Finished finished;
  std::array<char, 65536> buffer{};
  ssize_t length = 0;
  while ((length = ::read(ends[0], buffer.data(), buffer.size())) != 0) {
    if (length > 0) {
      finished.output.append(buffer.data(), static_cast<std::size_t>(length));
    } else if (errno != EINTR) {
      break;
    }
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

ErrorCode code_named(const std::string& name) {
  for (const ErrorCode code : {ErrorCode::kBadInput, ErrorCode::kIo, ErrorCode::kInfeasible,
                               ErrorCode::kUnsupported, ErrorCode::kPeer}) {
    if (name == name_of(code)) {
      return code;
    }
  }
  return ErrorCode::kInternal;
}

}  // namespace

Json run_self(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"coterie"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--json", "--quiet"});
  const Finished finished = run_process(all);
  const std::string source = "output of coterie " + arguments.front();
  if (finished.output.empty()) {
    fail(ErrorCode::kInternal, source, ": none; it ended with exit code ", finished.exit_code);
  }
  Json document = parse_json(finished.output, source);
  if (document.contains("error")) {
    const JsonReader error = JsonReader(document, source).at("error");
    fail(code_named(error.at("code").as_string()), "coterie ", arguments.front(), ": ",
         error.at("message").as_string());
  }
  return document;
}

}  // namespace coterie::cli
