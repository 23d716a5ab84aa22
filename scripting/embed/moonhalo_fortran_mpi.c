/* SPDX-License-Identifier: Apache-2.0 */
/* moonhalo_mpi.h for Fortran, compiled with the program against its MPI (moonhalo::fortran_mpi). */
#include <moonhalo/moonhalo_mpi.h>

int moonhalo_mpi_transport(const int* comm, mh_transport* transport) {
  return mh_mpi_transport(MPI_Comm_f2c((MPI_Fint)*comm), transport);
}

int moonhalo_mpi_transport_free(mh_transport* transport) { return mh_mpi_transport_free(transport); }
