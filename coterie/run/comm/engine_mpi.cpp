// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/comm/c10d_communicator.hpp"
#include "coterie/run/comm/engines.hpp"
#include "coterie/run/comm/mpi_backend.hpp"
#include "coterie/run/comm/mpi_runtime.hpp"

namespace coterie::comm {

std::unique_ptr<Communicator> make_mpi(const GroupOptions& options) {
  const RankEnvironment& environment = options.environment;
  if (environment.launcher == Launcher::kTorchrun && environment.size > 1) {
    fail(ErrorCode::kUnsupported, "torchrun started this (RANK=", environment.rank,
         ", WORLD_SIZE=", environment.size, "), but ranks on CPUs speak MPI: use --nproc ",
         environment.size, " without torchrun, or ", "mpirun -n ", environment.size);
  }
  start_mpi();
  if (mpi_size() != environment.size) {
    fail(ErrorCode::kUnsupported, name_of(environment.launcher), " started ", environment.size,
         " processes, but MPI sees ", mpi_size(),
         environment.launcher == Launcher::kSlurm ? ": use srun --mpi=pmix, or mpirun in the job"
                                                  : ": is mpirun that of Open MPI?");
  }
  auto backend = c10::make_intrusive<MpiBackend>(options.timeout);
  return std::make_unique<C10dCommunicator>(std::move(backend), options.timeout);
}

}  // namespace coterie::comm
