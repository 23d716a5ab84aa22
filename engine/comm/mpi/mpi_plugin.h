// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The backend of MPI in a library of its own: these functions of communicator.h.
struct MpiFunctions {
  CommunicatorPtr (*make_communicator)(const void* mpi_comm);
  CommunicatorPtr (*make_communicator_from_fortran)(int mpi_fint);
  CommunicatorPtr (*make_world)();
};
constexpr const char* kMpiPlugin = "libmoonhalo_mpi.so";
constexpr const char* kMpiPluginFunctions = "moonhalo_mpi_functions";

}  // namespace moonhalo

extern "C" const moonhalo::MpiFunctions* moonhalo_mpi_functions();
