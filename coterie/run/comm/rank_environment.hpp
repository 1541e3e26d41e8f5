// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace coterie::comm {

/// What started this process.
enum class Launcher : std::uint8_t { kNone, kMpirun, kPmi, kSlurm, kTorchrun };

/// Name as in messages: "mpirun", "Slurm", ...
const char* name_of(Launcher launcher) noexcept;

/// Which of how many ranks this process is.
struct RankEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine

  bool operator==(const RankEnvironment&) const = default;
};

/// Looks a variable up; nothing where it is not set.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;

/// The variables of this process.
std::optional<std::string> get_variable(const char* name);

/// Reads what mpirun (OMPI_COMM_WORLD_*), other MPI starters (PMI_*), srun (SLURM_*, within a job
/// step) or torchrun (RANK, WORLD_SIZE) left. The innermost launcher wins, in this order: mpirun
/// may run inside a Slurm job. Throws kBadInput where one launcher's variables make no sense, or
/// where torchrun's contradict another launcher's: one message with both values.
RankEnvironment read_rank_environment(const GetVariable& get = get_variable);

/// Throws kBadInput if `num_processes` (--nproc; 0 if not given) contradicts the launcher, both
/// values named. True if this process must start the ranks itself.
bool must_start_ranks(const RankEnvironment& environment, int num_processes);

}  // namespace coterie::comm
