// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <string>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/missing_mpi.h"

namespace moonhalo {
namespace {

[[noreturn]] void refuse(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, what, ": this Moonhalo was built without MPI",
      "\n  have  a build in which CMake found no MPI, or -DMOONHALO_MPI=OFF",
      "\n  fix   install an MPI (Debian: libopenmpi-dev) and build again, or use backend \"threads\"");
}

}  // namespace

bool has_mpi() { return false; }
std::string missing_mpi() { return "this Moonhalo was built without MPI"; }
bool looks_for_mpi() { return false; }
CommunicatorPtr make_mpi_communicator(const void*) { refuse("make_mpi_communicator"); }
CommunicatorPtr make_mpi_communicator_from_fortran(int) { refuse("make_mpi_communicator_from_fortran"); }
CommunicatorPtr make_mpi_world() { refuse("make_mpi_world"); }

}  // namespace moonhalo
