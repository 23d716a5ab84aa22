// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_plugin.h"

const moonhalo::MpiFunctions* moonhalo_mpi_functions() {
  static constexpr moonhalo::MpiFunctions kFunctions{
      &moonhalo::make_mpi_communicator, &moonhalo::make_mpi_communicator_from_fortran, &moonhalo::make_mpi_world};
  return &kFunctions;
}
