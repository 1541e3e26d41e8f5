// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/rank_environment.hpp"

#include <charconv>
#include <cstdlib>

#include "coterie/base/error.hpp"

namespace coterie::comm {

namespace {

/// The variables of one launcher.
struct Names {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr Names kMpirunNames = {Launcher::kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kPmiNames = {Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"};
constexpr Names kSlurmNames = {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};
constexpr Names kTorchrunNames = {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK"};

/// Steps that Slurm numbers from here up are no srun steps: batch script, interactive, extern.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

std::int64_t to_number(const char* name, const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  COTERIE_REQUIRE(error == std::errc() && at == end && !text.empty(), "environment: ", name, "=",
                  text, " is no whole number");
  return value;
}

std::optional<RankEnvironment> read_one(const Names& names, const GetVariable& get) {
  const auto rank = get(names.rank);
  const auto size = get(names.size);
  if (!rank && !size) {
    return std::nullopt;
  }
  COTERIE_REQUIRE(rank && size, "environment of ", name_of(names.launcher), ": ",
                  rank ? names.rank : names.size, "=", rank ? *rank : *size, " is set, but ",
                  rank ? names.size : names.rank, " is not");
  RankEnvironment found;
  found.launcher = names.launcher;
  const std::int64_t rank_number = to_number(names.rank, *rank);
  const std::int64_t size_number = to_number(names.size, *size);
  COTERIE_REQUIRE(
      size_number >= 1 && size_number <= 1'000'000 && rank_number >= 0 && rank_number < size_number,
      "environment of ", name_of(names.launcher), ": ", names.rank, "=", *rank, " does not fit ",
      names.size, "=", *size);
  found.rank = static_cast<int>(rank_number);
  found.size = static_cast<int>(size_number);
  if (const auto local = get(names.local_rank)) {
    found.local_rank = static_cast<int>(to_number(names.local_rank, *local));
  }
  return found;
}

/// Slurm sets its variables in batch scripts too, where no ranks are started.
bool is_slurm_step(const GetVariable& get) {
  const auto step = get("SLURM_STEP_ID");
  return step && to_number("SLURM_STEP_ID", *step) < kFirstSpecialStep;
}

std::string describe(const RankEnvironment& environment, const Names& names) {
  return join_message(name_of(names.launcher), " says rank ", environment.rank, " of ",
                      environment.size, " (", names.rank, ", ", names.size, ")");
}

}  // namespace

const char* name_of(Launcher launcher) noexcept {
  switch (launcher) {
    case Launcher::kNone: return "no launcher";
    case Launcher::kMpirun: return "mpirun";
    case Launcher::kPmi: return "PMI";
    case Launcher::kSlurm: return "Slurm";
    case Launcher::kTorchrun: return "torchrun";
  }
  return "unknown launcher";
}

std::optional<std::string> get_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

RankEnvironment read_rank_environment(const GetVariable& get) {
  std::optional<RankEnvironment> found;
  Names found_names = kTorchrunNames;
  for (const Names& names : {kMpirunNames, kPmiNames, kSlurmNames}) {
    if (!found && (names.launcher != Launcher::kSlurm || is_slurm_step(get))) {
      found = read_one(names, get);
      found_names = names;
    }
  }
  const auto torchrun = read_one(kTorchrunNames, get);
  if (!found) {
    return torchrun.value_or(RankEnvironment{});
  }
  COTERIE_REQUIRE(!torchrun || (torchrun->rank == found->rank && torchrun->size == found->size),
                  "two launchers at once: ", describe(*found, found_names), ", ",
                  describe(*torchrun, kTorchrunNames), ". Start with one of them, or unset the ",
                  "variables of the other");
  return *found;
}

bool must_start_ranks(const RankEnvironment& environment, int num_processes) {
  COTERIE_REQUIRE(num_processes >= 0, "--nproc ", num_processes, ": needs at least 1");
  // One rank of srun or torchrun is like no launcher: an interactive step, a container's default.
  const bool is_alone = environment.launcher == Launcher::kNone ||
                        (environment.size == 1 && environment.launcher != Launcher::kMpirun);
  if (is_alone) {
    return num_processes > 1;
  }
  COTERIE_REQUIRE(num_processes == 0 || num_processes == environment.size, "--nproc ",
                  num_processes, ", but ", name_of(environment.launcher), " started ",
                  environment.size, environment.size == 1 ? " process" : " processes",
                  ": leave --nproc out, or start without ", name_of(environment.launcher));
  return false;
}

}  // namespace coterie::comm
