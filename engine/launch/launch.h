// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Says what started this process, as far as its environment tells, and which of how many it is.
struct Launch {
  enum Kind { kSingle, kTorchrun, kOpenMpi, kFlux, kPals, kPmi, kSlurm };
  Kind kind = kSingle;
  int rank = 0;
  int size = 1;
  /// Among the ranks of this machine; -1 where the launcher does not say.
  int local_rank = 0;
  int local_size = 1;
  /// True if the launcher has set up what MPI's processes need to find each other (its own, PMI or PMIx).
  bool joins_mpi = false;
  /// For people: the variables that decided, and those that say otherwise, or too little, and were not believed.
  std::string why, not_believed = {};
};
/// "single" | "torchrun" | "openmpi" | "flux" | "pals" | "pmi" | "slurm"
const char* name(Launch::Kind kind);

/// Asks, in this order: torchrun (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all of them), Open MPI, Flux and PALS
/// (jobs of several tasks whose own numbers are those of PMI: an mpirun in one of their tasks has others), PMI (MPICH,
/// Intel MPI, MVAPICH), Slurm (only inside a step of more than one task: an sbatch shell and a single mpirun under srun
/// have its variables too). `getenv` returns null for what is not set. ValueError for numbers that are none or do not
/// fit together, and for a rank above 0 of PMIx that no variable tells the number of ranks.
Launch detect_launch(const std::function<const char*(const char*)>& getenv);
/// From the environment of this process.
Launch detect_launch();

/// The backend that make_world takes for "": "threads", "mpi" or "tcp".
std::string fitting_backend(const Launch& launch);

/// The world of a process that was started by `launch`. backend "" takes what fits: one process alone gets a world of
/// one, several get MPI where the launcher joins its processes, else TCP (torchrun, Slurm without PMI). "threads" is
/// for one process (its ranks come from run_ranks); "mpi", "tcp" and "fake" are made as asked; "nccl" and "staged" say
/// how devices talk (set_device_link), and the world is what fits. Collective over the processes for "mpi" and "tcp".
/// ValueError for unknown names and for a backend that cannot reach the other processes; CommError when processes
/// cannot be reached.
CommunicatorPtr make_world(const std::string& backend, const Launch& launch);

}  // namespace moonhalo
