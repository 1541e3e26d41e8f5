// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_checks.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::cli {
namespace {

using State = DoctorCheck::State;

constexpr std::uint64_t kLittleMemoryMb = 2000;

/// Path of a loaded library whose file name begins with `name`; empty if none is loaded.
std::string loaded_library(std::string name) {
  struct Search {
    std::string name;
    std::string found;
  } search{std::move(name), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        const std::filesystem::path path(library->dlpi_name);
        if (path.filename().string().starts_with(wanted->name)) {
          wanted->found = path.string();
        }
        return 0;
      },
      &search);
  return search.found;
}

/// The value behind "KEY :" or "KEY:" in a file of /proc.
std::string value_in(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos) {
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

DoctorCheck check_build() {
  return {"coterie", State::kOk, std::string(COTERIE_VERSION) + ", compiled by g++ " + __VERSION__,
          ""};
}

DoctorCheck check_torch() {
  const std::string path = loaded_library("libtorch_cpu.so");
  const std::string version = TORCH_VERSION;
  if (path.empty()) {
    return {"libtorch", State::kFail, "built with " + version + ", not loaded", "run ./dev setup"};
  }
  const bool tested = version.starts_with("2.11.");
  return {"libtorch", tested ? State::kOk : State::kWarn, version + " (" + path + ")",
          tested ? "" : "coterie is tested with torch 2.11: run ./dev setup, then build again"};
}

DoctorCheck check_mpi() {
  using GetVersion = int (*)(char*, int*);
  const auto get = reinterpret_cast<GetVersion>(dlsym(RTLD_DEFAULT, "MPI_Get_library_version"));
  if (get == nullptr) {
    return {"MPI", State::kFail, "no MPI library is loaded",
            "install libopenmpi-dev and openmpi-bin, then build again"};
  }
  std::array<char, 8192> text{};
  int length = 0;
  get(text.data(), &length);
  std::string version = text.data();
  version = version.substr(0, version.find(','));
  const bool is_open_mpi = version.starts_with("Open MPI");
  return {"MPI", is_open_mpi ? State::kOk : State::kWarn,
          version + " (" + loaded_library("libmpi.so") + ")",
          is_open_mpi ? "" : "coterie is tested with Open MPI"};
}

DoctorCheck check_processor() {
  std::string names;
  for (const kernels::Backend backend : kernels::available_backends()) {
    names += (names.empty() ? "" : ", ") + std::string(kernels::name_of(backend));
  }
  const std::string model = value_in("/proc/cpuinfo", "model name");
  try {
    const kernels::Backend chosen = kernels::resolve_backend(kernels::Backend::kAutomatic);
    const bool is_fast =
        chosen != kernels::Backend::kGeneric && chosen != kernels::Backend::kReference;
    return {"processor", is_fast ? State::kOk : State::kWarn,
            model + "; kernels " + kernels::name_of(chosen) + " (of " + names + ")",
            is_fast ? "" : "slow kernels: unset COTERIE_KERNELS, or use a processor with AVX2"};
  } catch (const Error& error) {
    return {"processor", State::kFail, error.what(), "unset COTERIE_KERNELS"};
  }
}

DoctorCheck check_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return {"cores", usable > 1 ? State::kOk : State::kWarn,
          std::to_string(usable) + " usable of " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)),
          usable > 1 ? "" : "ranks will take turns on one core"};
}

DoctorCheck check_memory() {
  const std::string available = value_in("/proc/meminfo", "MemAvailable");
  const std::uint64_t megabytes = std::strtoull(available.c_str(), nullptr, 10) / 1000;
  const bool enough = megabytes >= kLittleMemoryMb;
  return {"memory", enough ? State::kOk : State::kWarn, std::to_string(megabytes) + " MB available",
          enough ? "" : "models larger than that will not load"};
}

DoctorCheck check_launcher(bool& is_rank) {
  try {
    const comm::RankEnvironment environment = comm::read_rank_environment();
    is_rank = environment.launcher != comm::Launcher::kNone;
    return {"launcher", State::kOk,
            is_rank ? join_message("rank ", environment.rank, " of ", environment.size,
                                   ", started by ", comm::name_of(environment.launcher))
                    : std::string("none: --nproc starts ranks itself"),
            ""};
  } catch (const Error& error) {
    is_rank = true;
    return {"launcher", State::kFail, error.what(), "unset the variables named, or start anew"};
  }
}

DoctorCheck check_gpus() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("nvidia-smi -L 2>/dev/null", "r"),
                                                   &pclose);
  int count = 0;
  std::string first;
  std::array<char, 512> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    const std::string text = line.data();
    if (text.starts_with("GPU ")) {
      const std::size_t begin = text.find(": ");
      first = count++ == 0 && begin != std::string::npos
                  ? text.substr(begin + 2, text.find(" (", begin) - begin - 2)
                  : first;
    }
  }
  if (count == 0) {
    return {"GPUs", State::kOk, "none (not needed)", ""};
  }
  const std::string found = std::to_string(count) + " x " + first + "; ";
  if (!kernels::cuda::is_built()) {
    return {"GPUs", State::kOk, found + "this build has no GPU kernels", ""};
  }
  try {
    if (const device::GpuState gpus = device::gpu_state(); !gpus.usable) {
      return {"GPUs", State::kWarn, found + gpus.reason, "coterie train --device cuda will refuse"};
    }
    return {"GPUs", State::kOk,
            found + to_string(kernels::cuda::choose_path(kernels::cuda::Path::kAutomatic,
                                                         kernels::DType::kBfloat16)),
            ""};
  } catch (const Error& error) {
    return {"GPUs", State::kFail, found + error.what(), "unset COTERIE_GPU_KERNELS"};
  }
}

DoctorCheck check_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) {
    return {"cache", State::kWarn, "neither HOME nor XDG_CACHE_HOME is set", "set one of them"};
  }
  const std::filesystem::path folder =
      (cache != nullptr ? std::filesystem::path(cache) : std::filesystem::path(home) / ".cache") /
      "coterie";
  const std::filesystem::path probe = folder / (".doctor-" + std::to_string(getpid()));
  try {
    std::filesystem::create_directories(folder);
    write_text_file(probe, "x");
    std::filesystem::remove(probe);
    return {"cache", State::kOk, folder.string() + " can be written", ""};
  } catch (const std::exception& error) {
    return {"cache", State::kFail, error.what(), "make the folder writable or set XDG_CACHE_HOME"};
  }
}

DoctorCheck check_ranks(bool is_rank) {
  if (is_rank) {
    return {"mpirun", State::kOk, "not tried: this process is a rank itself", ""};
  }
  comm::StartOptions options;
  options.num_processes = 2;
  options.command = {"/bin/sh", "-c", "test \"$OMPI_COMM_WORLD_SIZE\" = 2"};
  const char* hint = "install openmpi-bin; coterie run --nproc N needs mpirun";
  try {
    const comm::RanksEnd end = comm::start_ranks(options);
    const bool works = end.exit_code == 0;
    return {"mpirun", works ? State::kOk : State::kFail,
            works ? "starts 2 ranks"
                  : "2 ranks ended with exit code " + std::to_string(end.exit_code) + " " +
                        end.launcher_words,
            works ? "" : hint};
  } catch (const Error& error) {
    return {"mpirun", State::kFail, error.what(), hint};
  }
}

}  // namespace

const char* name_of(DoctorCheck::State state) noexcept {
  switch (state) {
    case State::kOk: return "ok";
    case State::kWarn: return "warn";
    case State::kFail: return "fail";
  }
  return "fail";
}

std::vector<DoctorCheck> examine_machine() {
  bool is_rank = false;
  std::vector<DoctorCheck> checks = {check_build(),     check_torch(), check_mpi(),
                                     check_processor(), check_cores(), check_memory()};
  checks.push_back(check_launcher(is_rank));
  checks.push_back(check_gpus());
  checks.push_back(check_cache());
  checks.push_back(check_ranks(is_rank));
  return checks;
}

}  // namespace coterie::cli
