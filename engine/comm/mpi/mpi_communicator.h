// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Makes a communicator from a duplicate of `comm`: make_mpi_communicator(MPI_COMM_WORLD). The caller still owns
/// `comm`. Collective over `comm`. This is the only header that needs an mpi.h, so moonhalo.h does not include it.
inline CommunicatorPtr make_mpi_communicator(MPI_Comm comm) {
  return make_mpi_communicator(static_cast<const void*>(&comm));
}

}  // namespace moonhalo
