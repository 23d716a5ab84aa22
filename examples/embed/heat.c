/* SPDX-License-Identifier: Apache-2.0 */
/* A solver of the heat equation (heat_blocks.h) with a network inside.
   shows:
    * the solver's array is handed over once, ghosts and all, without a copy
    * a network trains in situ on what the solver computes, then advances the same array
    * errors are codes, the same on all ranks
    * any MPI will do

       mpirun -n 4 heat_c surrogate.lua [LEAPS]          LEAPS of training, 1200 if not given

   heat.cpp and heat.f90 are the same in C++ and in Fortran; in_transit.c trains on other ranks than those that solve. */
#include "heat_blocks.h"

int main(int argc, char** argv) {
  mh_session* session;
  mh_transport transport;
  mh_block block;
  solver s;
  double loss = 0;
  const int leaps = argc > 2 ? atoi(argv[2]) : 1200;
  int leap;

  MPI_Init(&argc, &argv);
  s = start_solver(MPI_COMM_WORLD);
  session = open_session(&s.comm, argc > 1 ? argv[1] : "surrogate.lua", "lr=1e-2", &transport);
  block = block_of(&s);
  check(mh_field(session, "u", &block));

  /* In situ: at every leap of two steps the network sees where the solver was and where it got to. */
  for (leap = 0; leap < leaps; ++leap) {
    if (leap % 8 == 0) set_initial(&s, leap / 8);
    check(mh_call(session, "remember", 0, NULL, 0, NULL));
    step(&s);
    step(&s);
    check(mh_call(session, "learn", 0, NULL, 1, &loss));
  }

  if (s.rank == 0) printf("final training loss                %.16e\n", loss);
  use_network(session, &s);
  check(mh_close(session));
  mh_mpi_transport_free(&transport);
  end_solver(&s);
  MPI_Finalize();
  return 0;
}
