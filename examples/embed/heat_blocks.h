// SPDX-License-Identifier: Apache-2.0
/* A plain solver of the heat equation u' = div grad u on a rectangle whose edge is held at 0 (explicit Euler,
   five-point stencil), with an MPI of its own: uneven 2-D blocks, one ghost cell on every side. It knows nothing of
   tensors; only the last three functions know of sessions. For heat.c, heat.cpp and in_transit.c. */
#ifndef HEAT_BLOCKS_H
#define HEAT_BLOCKS_H

#include <math.h>
#include <moonhalo/moonhalo_c.h>
#include <moonhalo/moonhalo_mpi.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 37, kColumns = 30, kUsed = 10 };

typedef struct {
  MPI_Comm comm; /* a grid of ranks */
  int rank, blocks[2], place[2];
  int begin[2], owned[2];
  int pitch;          /* elements from one row to the next */
  double *now, *next; /* [owned[0] + 2][owned[1] + 2] */
  MPI_Datatype column;
} solver;

static void check(mh_status status) {
  if (status == MH_OK) return;
  fprintf(stderr, "heat: %s\n", mh_error());
  MPI_Abort(MPI_COMM_WORLD, (int)status);
}

static double* at(double* field, const solver* s, int i, int j) { return field + (i + 1) * s->pitch + j + 1; }

static solver start_solver(MPI_Comm ranks_of) {
  const int periodic[2] = {0, 0}, whole[2] = {kRows, kColumns};
  solver s;
  int ranks, d;
  MPI_Comm_size(ranks_of, &ranks);
  s.blocks[0] = s.blocks[1] = 0;
  MPI_Dims_create(ranks, 2, s.blocks);
  MPI_Cart_create(ranks_of, 2, s.blocks, periodic, 1, &s.comm);
  MPI_Comm_rank(s.comm, &s.rank);
  MPI_Cart_coords(s.comm, s.rank, 2, s.place);
  for (d = 0; d < 2; ++d) { /* the first block has twice its share */
    const int shares = s.blocks[d] + 1;
    s.begin[d] = s.place[d] == 0 ? 0 : (s.place[d] + 1) * whole[d] / shares;
    s.owned[d] = (s.place[d] + 2) * whole[d] / shares - s.begin[d];
  }
  s.pitch = s.owned[1] + 2;
  s.now = (double*)calloc((size_t)((s.owned[0] + 2) * s.pitch), sizeof(double));
  s.next = (double*)calloc((size_t)((s.owned[0] + 2) * s.pitch), sizeof(double));
  MPI_Type_vector(s.owned[0], 1, s.pitch, MPI_DOUBLE, &s.column);
  MPI_Type_commit(&s.column);
  return s;
}

static void end_solver(solver* s) {
  free(s->now);
  free(s->next);
  MPI_Type_free(&s->column);
  MPI_Comm_free(&s->comm);
}

/* A smooth field, the same for any number of ranks. */
static void set_initial(solver* s, int seed) {
  const double pi = acos(-1.0);
  int i, j, wave;
  for (i = 0; i < s->owned[0]; ++i) {
    for (j = 0; j < s->owned[1]; ++j) {
      double value = 0;
      for (wave = 1; wave <= 6; ++wave) {
        const double phase = sin(12.9898 * wave + 78.233 * seed) * 43758.5453;
        value += (phase - floor(phase) - 0.5) * sin(pi * wave * (s->begin[0] + i + 1) / (kRows + 1)) *
                 sin(pi * (1 + (wave * 5 + seed) % 7) * (s->begin[1] + j + 1) / (kColumns + 1));
      }
      *at(s->now, s, i, j) = value;
    }
  }
}

static void exchange_ghosts(solver* s) {
  const int h = s->owned[0], w = s->owned[1];
  double* u = s->now;
  int low, high;
  MPI_Cart_shift(s->comm, 0, 1, &low, &high);
  MPI_Sendrecv(at(u, s, 0, 0), w, MPI_DOUBLE, low, 0, at(u, s, h, 0), w, MPI_DOUBLE, high, 0, s->comm,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(at(u, s, h - 1, 0), w, MPI_DOUBLE, high, 0, at(u, s, -1, 0), w, MPI_DOUBLE, low, 0, s->comm,
               MPI_STATUS_IGNORE);
  MPI_Cart_shift(s->comm, 1, 1, &low, &high);
  MPI_Sendrecv(at(u, s, 0, 0), 1, s->column, low, 0, at(u, s, 0, w), 1, s->column, high, 0, s->comm, MPI_STATUS_IGNORE);
  MPI_Sendrecv(at(u, s, 0, w - 1), 1, s->column, high, 0, at(u, s, 0, -1), 1, s->column, low, 0, s->comm,
               MPI_STATUS_IGNORE);
}

/* One time step of dt = 0.2 (grid spacing 1; stable below 0.25). */
static void step(solver* s) {
  int i, j;
  exchange_ghosts(s);
  for (i = 0; i < s->owned[0]; ++i) {
    for (j = 0; j < s->owned[1]; ++j) {
      const double here = *at(s->now, s, i, j);
      const double around =
          *at(s->now, s, i - 1, j) + *at(s->now, s, i + 1, j) + *at(s->now, s, i, j - 1) + *at(s->now, s, i, j + 1);
      *at(s->next, s, i, j) = here + 0.2 * (around - 4 * here);
    }
  }
  for (i = 0; i < s->owned[0]; ++i)
    memcpy(at(s->now, s, i, 0), at(s->next, s, i, 0), sizeof(double) * (size_t)s->owned[1]);
}

/* A session over these ranks. With another MPI than the one that Moonhalo was built with, which it refuses, over that
   MPI's functions, which `transport` holds: it must be there until the session ends, and is freed after that. */
static inline mh_session* open_session(const MPI_Comm* comm, const char* script, const char* settings,
                                       mh_transport* transport) {
  mh_session* session;
  mh_options options = MH_OPTIONS;
  mh_status status;
  memset(transport, 0, sizeof(*transport));
  options.script = script;
  options.settings = settings;
  options.mpi_comm = comm;
  status = mh_open(&options, &session);
  if (status == MH_UNSUPPORTED && mh_mpi_transport(*comm, transport) == MPI_SUCCESS) {
    options.mpi_comm = NULL;
    options.transport = transport;
    status = mh_open(&options, &session);
  }
  check(status);
  return session;
}

/* The whole block with its ghosts; the script sees what is owned. */
static inline mh_block block_of(const solver* s) {
  mh_block block;
  int d;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = s->now;
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  for (d = 0; d < 2; ++d) {
    block.extent[d] = s->owned[d] + 2;
    block.ghost_low[d] = block.ghost_high[d] = 1;
    block.begin[d] = s->begin[d];
  }
  block.global[0] = kRows;
  block.global[1] = kColumns;
  return block;
}

/* Use: one field advanced by the solver, then the same by the network in the solver's array. */
static inline void use_network(mh_session* session, solver* s) {
  const size_t bytes = sizeof(double) * (size_t)((s->owned[0] + 2) * s->pitch);
  double *truth = (double*)malloc(bytes), norms[2], change;
  int i;
  set_initial(s, 1000);
  check(mh_call(session, "remember", 0, NULL, 0, NULL));
  for (i = 0; i < 2 * kUsed; ++i) step(s);
  check(mh_call(session, "measure", 0, NULL, 2, norms));
  change = norms[1];
  memcpy(truth, s->now, bytes);
  set_initial(s, 1000);
  for (i = 0; i < kUsed; ++i) check(mh_call(session, "leap", 0, NULL, 0, NULL));
  check(mh_call(session, "remember", 0, NULL, 0, NULL));
  memcpy(s->now, truth, bytes);
  check(mh_call(session, "measure", 0, NULL, 2, norms));
  if (s->rank == 0) {
    printf("the field changed by (rms)         %.16e\n", change);
    printf("network against solver (rms)       %.16e\n", norms[1]);
  }
  free(truth);
}

#endif
