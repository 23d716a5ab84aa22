// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Wraps the caller's communicator: make_mpi_communicator(MPI_COMM_WORLD). The one header that needs an mpi.h,
/// so moonhalo.h leaves it to who has one. Collective over `comm`, which is duplicated and stays the caller's.
inline CommunicatorPtr make_mpi_communicator(MPI_Comm comm) {
  return make_mpi_communicator(static_cast<const void*>(&comm));
}

}  // namespace moonhalo
