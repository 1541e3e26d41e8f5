// SPDX-License-Identifier: Apache-2.0
#include "cli/launch.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

/// The command line of this process, its program by its real path.
std::vector<std::string> own_command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::string> words;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\0', start);
    words.push_back(text.substr(start, end - start));
    start = end == std::string::npos ? text.size() : end + 1;
  }
  COTERIE_CHECK(!words.empty(), "/proc/self/cmdline is empty");
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

/// Starts the ranks and ends as they do: returns after success, else throws what the first rank
/// that failed would have thrown.
void start_and_wait(const LaunchFlags& flags) {
  comm::StartOptions options;
  options.num_processes = flags.num_processes;
  options.passes_interrupts = flags.passes_interrupts;
  options.command = own_command_line();
  options.on_error_output = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
  };
  const comm::RanksEnd end = comm::start_ranks(options);
  if (end.failure) {
    fail(end.failure->code, "rank ", end.failure->rank, ": ", end.failure->message);
  }
  if (end.exit_code > 0 && end.exit_code <= 4) {
    std::exit(end.exit_code);  // the ranks have said all
  }
  if (end.exit_code != 0) {
    fail(ErrorCode::kPeer, "a rank ended without a word (exit code ", end.exit_code,
         "). mpirun says: ", end.launcher_words);
  }
}

ErrorCode code_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? own->code() : ErrorCode::kInternal;
}

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  command
      .add_option("--nproc", flags.num_processes,
                  "processes, one a device; started here, unless mpirun or Slurm did")
      ->check(CLI::Range(1, 1024));
  command.add_option("--engine", flags.engine,
                     "what carries the bytes: automatic, mpi, fake (threads of this process)");
  command.add_option("--timeout-s", flags.timeout_s, "seconds to wait for another rank")
      ->check([](const std::string& text) {
        double value = 0;  // CLI::Range would let "nan" through
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= 0.001 && value <= 1e7;
        return fits ? std::string() : "Value " + text + " not in range [0.001 - 1e7]";
      })
      ->capture_default_str();
  command
      .add_option("--threads", flags.num_threads,
                  "threads of each process (default: its share of the cores)")
      ->check(CLI::Range(1, 1024));
}

int threads_of_rank(const LaunchFlags& flags, const comm::RankEnvironment& environment) {
  if (flags.num_threads > 0) {
    return flags.num_threads;
  }
  const int num_cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (const auto text = comm::get_variable("OMP_NUM_THREADS")) {
    int value = 0;
    std::from_chars(text->data(), text->data() + text->size(), value);
    if (value > 0) {
      return std::min(value, num_cores);
    }
  }
  const int num_ranks = flags.engine == "fake" ? flags.num_processes : environment.size;
  return std::max(1, num_cores / std::max(1, num_ranks));
}

void run_on_ranks(const LaunchFlags& flags, Console& console,
                  const std::function<int(comm::Communicator&)>& work) {
  comm::GroupOptions options;
  options.engine = flags.engine;
  options.environment = comm::read_rank_environment();
  options.num_fake_ranks = std::max(1, flags.num_processes);
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.timeout_s * 1000));
  if (flags.engine != "fake" && comm::must_start_ranks(options.environment, flags.num_processes)) {
    start_and_wait(flags);
    return;
  }
  console.set_mute(options.environment.rank != 0);
  std::atomic<bool> is_told = false;  // by whoever started this rank
  std::atomic<int> exit_code = 0;
  options.on_failure = [&](int rank, const std::exception& error) {
    is_told = comm::record_rank_failure({rank, code_of(error), error.what()});
  };
  try {
    comm::run_in_group(options, [&](comm::Communicator& communicator) {
      const int code = work(communicator);
      exit_code = std::max(code, exit_code.load());
    });
  } catch (const std::exception& error) {
    if (!is_told) {
      is_told = comm::record_rank_failure({options.environment.rank, code_of(error), error.what()});
    }
    if (is_told) {
      std::fflush(nullptr);
      std::_Exit(exit_code_of(code_of(error)));
    }
    throw;
  }
  if (exit_code != 0) {
    std::exit(exit_code);
  }
}

}  // namespace coterie::cli
