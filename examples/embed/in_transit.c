/* SPDX-License-Identifier: Apache-2.0 */
/* A solver of the heat equation (heat_blocks.h) whose network trains on ranks of its own, in transit.
   shows:
    * one session over all ranks, which the script divides; from then on calls are collective over the ranks that solve,
      or over those that train
    * the solver sends snapshots of two fields and goes on; new weights come back when they are ready
    * the trainers hold the same fields in other blocks, and need no memory of the solver's

       mpirun -n 4 in_transit surrogate.lua [TRAINERS [SETS]]       the last TRAINERS ranks train, 1 if not given,
                                                                    until SETS sets of weights have come, 60 */
#include "heat_blocks.h"

static double number(mh_session* session, const char* function) {
  double out = 0;
  check(mh_call(session, function, 0, NULL, 1, &out));
  return out;
}

static void train(mh_session* session) {
  const double snapshots = number(session, "serve"); /* returns when the solvers have finished */
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  printf("rank %d trained on %.0f snapshots\n", rank, snapshots);
}

static void solve(mh_session* session, MPI_Comm comm, int sets) {
  solver s = start_solver(comm);
  const size_t bytes = sizeof(double) * (size_t)((s.owned[0] + 2) * s.pitch);
  mh_block block = block_of(&s);
  double* before = (double*)malloc(bytes);
  int leap, come = 0;
  check(mh_field(session, "u", &block));
  block.data = before;
  check(mh_field(session, "before", &block));
  for (leap = 0; come < sets; ++leap) {
    if (leap % 8 == 0) set_initial(&s, leap / 8);
    memcpy(before, s.now, bytes);
    step(&s);
    step(&s);
    come += (int)number(session, "send"); /* 1: the network is newer than before */
  }
  check(mh_call(session, "finish", 0, NULL, 0, NULL));
  use_network(session, &s);
  free(before);
  end_solver(&s);
}

int main(int argc, char** argv) {
  mh_session* session;
  mh_transport transport;
  const int trainers = argc > 2 ? atoi(argv[2]) : 1, sets = argc > 3 ? atoi(argv[3]) : 60;
  char settings[60];
  int rank, ranks, trains;
  MPI_Comm world = MPI_COMM_WORLD, part;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &ranks);
  trains = rank >= ranks - trainers;
  MPI_Comm_split(world, trains, rank, &part); /* the solver's own */
  snprintf(settings, sizeof(settings), "trainers=%d", trainers);
  session = open_session(&world, argc > 1 ? argv[1] : "surrogate.lua", settings, &transport);
  if (trains) {
    train(session);
  } else {
    solve(session, part, sets);
  }
  check(mh_close(session));
  mh_mpi_transport_free(&transport);
  MPI_Comm_free(&part);
  MPI_Finalize();
  return 0;
}
