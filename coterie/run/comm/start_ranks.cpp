// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/start_ranks.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace coterie::comm {

namespace {

constexpr const char* kFailureFile = "COTERIE_FAILURE_FILE";

/// Splits mpirun's own notices, which it frames with lines of dashes, from what the ranks write.
class NoticeFilter {
 public:
  explicit NoticeFilter(const std::function<void(std::string_view)>& sink) : sink_(sink) {}

  void add(std::string_view text) {
    pending_ += text;
    std::size_t start = 0;
    for (std::size_t end = 0; (end = pending_.find('\n', start)) != std::string::npos;
         start = end + 1) {
      add_line(std::string_view(pending_).substr(start, end + 1 - start));
    }
    pending_.erase(0, start);
    if (!in_notice_ && !pending_.empty() && pending_[0] != '-') {
      pass(pending_);  // a progress line without its end
      pending_.clear();
    }
  }

  /// Call at the end of the text; what mpirun said.
  std::string take_notices() {
    add_line(pending_);
    pending_.clear();
    return std::move(notices_);
  }

 private:
  void add_line(std::string_view line) {
    const bool is_frame = line.size() > 60 && line.find_first_not_of("-\n") == std::string::npos;
    if (is_frame) {
      in_notice_ = !in_notice_;
    } else if (in_notice_) {
      notices_ += line;
    } else {
      pass(line);
    }
  }
  void pass(std::string_view text) {
    if (sink_) {
      sink_(text);
    }
  }

  const std::function<void(std::string_view)>& sink_;
  std::string pending_;
  std::string notices_;
  bool in_notice_ = false;
};

/// A folder of our own that goes when we do.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "coterie-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      fail(ErrorCode::kIo, name, ": cannot make a folder: ", std::strerror(errno));
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

int count_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<RankFailure> read_failure(const std::filesystem::path& path) {
  std::ifstream in(path);
  RankFailure failure;
  int code = 0;
  if (!(in >> failure.rank >> code)) {
    return std::nullopt;
  }
  in.get();  // the end of the first line
  failure.code = static_cast<ErrorCode>(code);
  std::ostringstream rest;
  rest << in.rdbuf();
  failure.message = rest.str();
  return failure;
}

/// Variables of a launcher around us, which started one rank: the ranks must not take them for
/// theirs.
bool is_of_outer_launcher(std::string_view variable) {
  constexpr std::array<std::string_view, 6> kPrefixes = {
      "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "PMI_", "PMIX_", "MPI_LOCAL"};
  return std::ranges::any_of(kPrefixes, [&](auto prefix) { return variable.starts_with(prefix); });
}

std::filesystem::path failure_file_in(const std::filesystem::path& scratch) {
  return scratch / "failure";
}

std::vector<std::string> child_environment(const std::filesystem::path& scratch, int num_threads) {
  std::vector<std::string> variables;
  bool has_threads = false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_of_outer_launcher(*variable)) {
      variables.emplace_back(*variable);
      has_threads = has_threads || variables.back().starts_with("OMP_NUM_THREADS=");
    }
  }
  if (!has_threads) {
    variables.push_back("OMP_NUM_THREADS=" + std::to_string(num_threads));
  }
  variables.push_back(std::string(kFailureFile) + "=" + failure_file_in(scratch).string());
  // Launches of one user share /tmp/ompi.HOST.USER, which the first to end removes under the
  // others.
  variables.push_back("OMPI_MCA_orte_tmpdir_base=" + scratch.string());
  variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT=1");
  variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts `command` with its standard error in `error_pipe` and nothing on standard input.
bool is_in_path(const std::string& program) {
  const char* variable = std::getenv("PATH");
  std::istringstream folders(variable != nullptr ? variable : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

/// The launcher ends when this process ends, however it ends: no ranks are left behind.
std::vector<std::string> tied_to_us(std::vector<std::string> command) {
  if (is_in_path("setpriv") && is_in_path(command[0])) {
    command.insert(command.begin(), {"setpriv", "--pdeathsig", "TERM"});
  }
  return command;
}

/// `own_group`: a terminal's Ctrl-C reaches this process only, not the command.
pid_t spawn(std::vector<std::string> command, std::vector<std::string> environment,
            const std::array<int, 2>& error_pipe, bool own_group) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, own_group ? POSIX_SPAWN_SETPGROUP : 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error_pipe[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, error_pipe[0]);
  posix_spawn_file_actions_addclose(&actions, error_pipe[1]);
  pid_t child = 0;
  const std::vector<char*> arguments = pointers_to(command);
  const std::vector<char*> variables = pointers_to(environment);
  const int status =
      posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(error_pipe[1]);
  if (status != 0) {
    close(error_pipe[0]);
    fail(ErrorCode::kUnsupported, "cannot start ", command[0], ": ", std::strerror(status),
         " (Debian and Ubuntu: apt-get install openmpi-bin)");
  }
  return child;
}

/// mpirun's process, for the signal handler.
volatile std::sig_atomic_t launcher_process = 0;
volatile std::sig_atomic_t num_interrupts = 0;

extern "C" void pass_interrupt(int /*signal*/) {
  const int earlier = num_interrupts;
  num_interrupts = earlier + 1;
  // mpirun hands SIGUSR1 on to every rank and ends them all on SIGTERM.
  kill(static_cast<pid_t>(launcher_process), earlier == 0 ? SIGUSR1 : SIGTERM);
}

/// While it lives, interrupts go to the ranks.
class InterruptPassing {
 public:
  explicit InterruptPassing(pid_t launcher) {
    launcher_process = launcher;
    num_interrupts = 0;
    struct sigaction action {};
    action.sa_handler = pass_interrupt;
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~InterruptPassing() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  InterruptPassing(const InterruptPassing&) = delete;
  InterruptPassing& operator=(const InterruptPassing&) = delete;

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

bool can_read_siblings() {
  // The parent of both is this process, as mpirun's daemon is that of the ranks.
  std::array<int, 2> hold{};
  if (pipe(hold.data()) != 0) {
    return false;
  }
  static const int kSecret = 42;
  const pid_t sibling = fork();
  if (sibling == 0) {
    close(hold[1]);
    char byte = 0;
    static_cast<void>(!read(hold[0], &byte, 1));  // until the parent closes its end
    _exit(0);
  }
  const pid_t reader = fork();
  if (reader == 0) {
    int seen = 0;
    iovec here = {&seen, sizeof(seen)};
    iovec there = {const_cast<int*>(&kSecret), sizeof(seen)};
    const bool works = process_vm_readv(sibling, &here, 1, &there, 1, 0) == sizeof(seen);
    _exit(works && seen == kSecret ? 0 : 1);
  }
  const bool works = reader > 0 && wait_for(reader) == 0;
  close(hold[0]);
  close(hold[1]);
  if (sibling > 0) {
    wait_for(sibling);
  }
  return works;
}

std::vector<std::string> mpirun_command(const StartOptions& options, int num_cores,
                                        bool can_read_peers) {
  std::vector<std::string> words = {"mpirun",    "--oversubscribe",
                                    "--bind-to", "none",
                                    "--stdin",   "none",
                                    "-n",        std::to_string(options.num_processes)};
  const auto set = [&](const char* name, const char* value) {
    words.insert(words.end(), {"--mca", name, value});
  };
  set("plm", "isolated");  // this machine only, inside a Slurm job too
  set("ras", "^slurm,gridengine");
  set("pml", "ob1");
  set("btl", "self,vader,tcp");  // shared memory first
  set("btl_tcp_if_include", "lo");
  if (!can_read_peers) {
    set("btl_vader_single_copy_mechanism", "none");
  }
  if (options.num_processes > num_cores) {
    set("mpi_yield_when_idle", "1");
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

RanksEnd start_ranks(const StartOptions& options) {
  COTERIE_REQUIRE(options.num_processes >= 1, "--nproc ", options.num_processes,
                  ": needs at least 1");
  COTERIE_CHECK(!options.command.empty(), "no command to start");
  const ScratchFolder scratch;
  const std::filesystem::path failure_file = failure_file_in(scratch.path());
  const int num_cores = count_cores();
  std::array<int, 2> error_pipe{};
  if (pipe2(error_pipe.data(), O_CLOEXEC) != 0) {
    fail(ErrorCode::kIo, "cannot make a pipe: ", std::strerror(errno));
  }
  const int num_threads = std::max(1, num_cores / options.num_processes);
  const pid_t child =
      spawn(tied_to_us(mpirun_command(options, num_cores, can_read_siblings())),
            child_environment(scratch.path(), num_threads), error_pipe, options.passes_interrupts);
  std::optional<InterruptPassing> passing;
  if (options.passes_interrupts) {
    passing.emplace(child);
  }
  NoticeFilter filter(options.on_error_output);
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = read(error_pipe[0], buffer.data(), buffer.size());
    if (count > 0) {
      filter.add({buffer.data(), static_cast<std::size_t>(count)});
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  close(error_pipe[0]);
  RanksEnd end;
  end.exit_code = wait_for(child);
  end.launcher_words = filter.take_notices();
  end.failure = read_failure(failure_file);
  if (end.failure) {
    end.exit_code = exit_code_of(end.failure->code);
  }
  return end;
}

bool record_rank_failure(const RankFailure& failure) noexcept {
  const char* path = std::getenv(kFailureFile);
  if (path == nullptr) {
    return false;
  }
  const bool is_echo =
      failure.code == ErrorCode::kPeer && failure.message.starts_with("aborted by rank");
  if (is_echo) {
    return true;
  }
  const std::string own = std::string(path) + "." + std::to_string(failure.rank);
  {
    std::ofstream out(own);
    out << failure.rank << ' ' << static_cast<int>(failure.code) << '\n' << failure.message;
  }
  link(own.c_str(), path);  // fails if another rank was first
  return true;
}

}  // namespace coterie::comm
