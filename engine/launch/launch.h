// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The launcher that started this process, as detected from the environment, and the process's rank.
struct Launch {
  /// The launchers that are detected; kSingle: none.
  enum Kind { kSingle, kTorchrun, kOpenMpi, kFlux, kPals, kPmi, kSlurm };
  /// The launcher, the rank of this process, and the number of processes.
  Kind kind = kSingle;
  int rank = 0;
  int size = 1;
  /// Rank on this machine; -1 if the launcher does not provide it.
  int local_rank = 0;
  int local_size = 1;
  /// True if the launcher has set up what MPI processes need to connect (its own protocol, PMI or PMIx).
  bool joins_mpi = false;
  /// Human-readable: the variables that were used, and conflicting or incomplete ones that were ignored.
  std::string why, ignored_variables = {};
};
/// Returns "single" | "torchrun" | "openmpi" | "flux" | "pals" | "pmi" | "slurm". Not collective.
const char* name(Launch::Kind kind);

/// Detects the launcher. Checks in this order: torchrun (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all of them);
/// Open MPI; Flux and PALS (jobs of several tasks whose numbers agree with PMI's: an mpirun inside of a task has other
/// PMI numbers); PMI (MPICH, Intel MPI, MVAPICH); Slurm (only in a step of more than one task: an sbatch shell and an
/// mpirun under srun also have its variables). `getenv` returns null for variables that are not set. Throws ValueError
/// for values that are not numbers or contradict each other, and for a PMIx rank above 0 if no variable holds the
/// number of ranks. Not collective.
Launch detect_launch(const std::function<const char*(const char*)>& getenv);
/// Detects the launcher from the environment of this process. Not collective.
Launch detect_launch();

/// Returns the backend that make_world uses for "": "threads", "mpi" or "tcp". Asks has_mpi(). Not collective.
std::string fitting_backend(const Launch& launch);

/// Makes the world of this process. backend "" selects one: a single process gets a world of one rank; several
/// processes get MPI if the launcher connects them and MPI is there, else TCP (torchrun, Slurm without PMI). "threads"
/// is for a single process whose ranks come from run_ranks. "mpi", "tcp" and "fake" are made as requested. "nccl" and
/// "staged" select the transport between devices (set_device_link); the world is the one for "". Collective over the
/// processes for "mpi" and "tcp". Throws ValueError for an unknown backend and for one that cannot reach the other
/// processes, and CommError if processes do not respond.
CommunicatorPtr make_world(const std::string& backend, const Launch& launch);

}  // namespace moonhalo
