// SPDX-License-Identifier: Apache-2.0
// A user's program that initialises MPI itself and gives its communicator, against the installed package.
#include <moonhalo/moonhalo.h>
#include <moonhalo/mpi_communicator.h>
#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const moonhalo::CommunicatorPtr world = moonhalo::make_mpi_communicator(MPI_COMM_WORLD);
    world->barrier();
    std::printf("moonhalo: rank %d of %d of a host's MPI\n", world->rank(), world->size());
  }
  MPI_Finalize();
}
