/* SPDX-License-Identifier: Apache-2.0 */
/* solver.f90 in C: mpirun -n 3 pretrained_c unet.lua "model=unet.pt2 output=u.pt" */
#include <math.h>
#include <moonhalo/moonhalo_c.h>
#include <mpi.h>
#include <stdio.h>

enum { kRows = 44, kColumns = 36, kSteps = 3 };

static void check(mh_status status) {
  if (status != MH_OK) fprintf(stderr, "solver: %s\n", mh_error());
  if (status != MH_OK) MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  static double u[kRows + 2][kColumns + 2], q[kRows][kColumns]; /* u with ghost cells */
  int rank, ranks, first, owned, i, j, step;
  MPI_Comm comm = MPI_COMM_WORLD;
  mh_session* session;
  mh_options options = MH_OPTIONS;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  first = kRows * rank * (rank + 1) / (ranks * (ranks + 1)); /* each rank has more rows than the rank before */
  owned = kRows * (rank + 1) * (rank + 2) / (ranks * (ranks + 1)) - first;
  for (i = 0; i < owned; ++i) {
    for (j = 0; j < kColumns; ++j) u[i + 1][j + 1] = sin(0.3 * (first + i + 1)) * cos(0.2 * (j + 1));
  }

  options.script = argc > 1 ? argv[1] : "unet.lua";
  options.settings = argc > 2 ? argv[2] : "";
  options.mpi_comm = &comm;
  mh_block of_u = {.size = sizeof(mh_block),
                   .data = u,
                   .dtype = MH_FLOAT64,
                   .ndim = 2,
                   .begin = {first},
                   .extent = {owned + 2, kColumns + 2},
                   .ghost_low = {1, 1},
                   .ghost_high = {1, 1}};
  mh_block of_q = {.size = sizeof(mh_block),
                   .data = q,
                   .dtype = MH_FLOAT64,
                   .ndim = 2,
                   .begin = {first},
                   .extent = {owned, kColumns}};
  check(mh_open(&options, &session));
  check(mh_field(session, "u", &of_u));
  check(mh_field(session, "q", &of_q));
  for (step = 0; step < kSteps; ++step) {
    check(mh_call(session, "infer", 0, NULL, 0, NULL)); /* q = net(u), in place */
    for (i = 0; i < owned; ++i) {
      for (j = 0; j < kColumns; ++j) u[i + 1][j + 1] += 0.1 * q[i][j];
    }
  }
  check(mh_call(session, "save", 0, NULL, 0, NULL));
  check(mh_close(session));
  MPI_Finalize();
  return 0;
}
