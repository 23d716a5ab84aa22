/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers on ranks of their own (X15). The reference trains on the same snapshots by itself, on one rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

enum { kFresh = 3 };

typedef struct {
  host all, solvers;
  int trainers, trains;
  mh_session* session;
  padded u, c;
} divided;

static double number(mh_session* session, const char* function) {
  double out = -1;
  EXPECT(mh_call(session, function, 0, NULL, 1, &out) == MH_OK);
  return out;
}

/* The last ranks train: two of four, else one. Two fields: of 13 x 11 elements, and of 2 x 3, which leaves blocks empty
   where there are many. */
static divided start(const host* h, const char* settings) {
  char text[300];
  MPI_Comm part;
  divided d;
  d.all = *h;
  d.trainers = h->ranks == 4 ? 2 : 1;
  d.trains = h->rank >= h->ranks - d.trainers;
  MPI_Comm_split(h->comm, d.trains, h->rank, &part);
  divide(&d.solvers, part);
  snprintf(text, sizeof(text), "trainers=%d %s", d.trainers, settings);
  d.session = open_session(h, text);
  EXPECT(number(d.session, "trains") == d.trains);
  EXPECT(number(d.session, "ranks") == d.solvers.ranks);
  if (d.trains) return d;
  d.u = make_padded(&d.solvers, 13, 11);
  d.c = make_padded(&d.solvers, 2, 3);
  EXPECT(mh_field(d.session, "u", &d.u.block) == MH_OK);
  EXPECT(mh_field(d.session, "c", &d.c.block) == MH_OK);
  return d;
}

static void end(divided* d) {
  EXPECT(mh_close(d->session) == MH_OK);
  if (!d->trains) {
    EXPECT(changed_outside(&d->u) == 0 && changed_outside(&d->c) == 0);
    free(d->u.memory);
    free(d->c.memory);
  }
  MPI_Comm_free(&d->solvers.comm);
  MPI_Barrier(d->all.comm);
}

static void grow(const padded* u) {
  int64_t i, j;
  for (i = 0; i < u->height; ++i) {
    for (j = 0; j < u->width; ++j) *at(u, i, j) += 0.125;
  }
}

/* Weights after `snapshots` of growing fields, trained here. */
static void reference(double out[2], int snapshots) {
  host one;
  mh_session* session;
  padded u, c;
  int k;
  divide(&one, MPI_COMM_SELF);
  u = make_padded(&one, 13, 11);
  c = make_padded(&one, 2, 3);
  session = open_session(&one, NULL);
  EXPECT(mh_field(session, "u", &u.block) == MH_OK && mh_field(session, "c", &c.block) == MH_OK);
  for (k = 0; k < snapshots; ++k) {
    const double factor = 0.5 + k;
    EXPECT(mh_call(session, "learn", 1, &factor, 0, NULL) == MH_OK);
    grow(&u);
  }
  EXPECT(mh_call(session, "learned", 0, NULL, 2, out) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  free(u.memory);
  free(c.memory);
}

static void expect_learned_within(mh_session* session, int snapshots, double tolerance) {
  double expected[2], found[2];
  reference(expected, snapshots);
  EXPECT(mh_call(session, "learned", 0, NULL, 2, found) == MH_OK);
  EXPECT(fabs(found[0] - expected[0]) < tolerance * fabs(expected[0]) && found[1] == expected[1]);
}

static void expect_learned(mh_session* session, int snapshots) { expect_learned_within(session, snapshots, 1e-12); }

/* What solvers get back is what training on the snapshots gives; between snapshots their weights stay. */
static void learns_alike(const host* h) {
  divided d = start(h, "");
  int k, calls;
  if (d.trains) {
    EXPECT(number(d.session, "serve") == kFresh + 1);
    expect_learned(d.session, kFresh + 1);
    end(&d);
    return;
  }
  EXPECT(call1(d.session, "step", 9) == 0 && call1(d.session, "step", 0.5) == 0); /* every = 2 */
  for (k = 1; k <= kFresh; ++k) {
    expect_learned(d.session, k - 1);
    grow(&d.u);
    for (calls = 0; call1(d.session, "step", 0.5 + k) == 0; ++calls) EXPECT(calls < 100000000);
    expect_learned(d.session, k);
  }
  EXPECT(number(d.session, "finish") == 1);
  expect_learned(d.session, kFresh + 1);
  EXPECT_ERROR(mh_call(d.session, "finish", 0, NULL, 0, NULL), MH_SCRIPT, "has ended before\n  have  the script has finished it");
  EXPECT_ERROR(mh_call(d.session, "serve", 0, NULL, 0, NULL), MH_SCRIPT, "serve is for ranks that train\n  have  a rank that solves");
  EXPECT_ERROR(mh_call(d.session, "too_late", 0, NULL, 0, NULL), MH_SCRIPT, "the ranks cannot be divided any more");
  end(&d);
}

/* The trainers go on only when the solvers, which have called several times meanwhile, tell them to by a file. */
static void solvers_do_not_wait(const host* h) {
  char path[300], settings[320];
  divided d;
  int i;
  own_path(path, sizeof(path), "trainers_go_on");
  snprintf(settings, sizeof(settings), "waits_for=%s", path);
  if (h->rank == 0) remove(path);
  MPI_Barrier(h->comm);
  d = start(h, settings);
  if (d.trains) {
    EXPECT(number(d.session, "serve") == 1);
  } else {
    for (i = 0; i < 8; ++i) EXPECT(call1(d.session, "step", 0.5) == 0);
    MPI_Barrier(d.solvers.comm);
    if (h->rank == 0) {
      FILE* file = fopen(path, "w");
      EXPECT(file != NULL && fclose(file) == 0);
    }
    EXPECT(number(d.session, "finish") == 1);
    expect_learned(d.session, 1);
  }
  end(&d);
  if (h->rank == 0) remove(path);
}

/* A session may end without any of it, and while the trainers still work. */
static void ends_early(const host* h) {
  divided d = start(h, "");
  end(&d);
  d = start(h, "");
  if (d.trains) {
    EXPECT(number(d.session, "serve") == 1);
  } else {
    for (int i = 0; i < 2; ++i) EXPECT(call1(d.session, "step", 0.5) == 0);
  }
  end(&d);
}

/* Registers the field's numbers in single precision, in a block of the same extents. */
static float* register_narrow(mh_session* session, const char* name, const padded* field) {
  mh_block block = field->block;
  float* narrow = (float*)malloc(sizeof(float) * (size_t)field->count);
  int64_t k;
  for (k = 0; k < field->count; ++k) narrow[k] = (float)field->memory[k];
  block.data = narrow;
  block.dtype = MH_FLOAT32;
  EXPECT(mh_field(session, name, &block) == MH_OK);
  return narrow;
}

/* A field of another dtype in the same blocks is sent as what it is. */
static void changes_dtype(const host* h) {
  divided d = start(h, "");
  float* narrow = NULL;
  if (d.trains) {
    EXPECT(number(d.session, "serve") == 2);
    expect_learned_within(d.session, 2, 1e-6);
    end(&d);
    return;
  }
  EXPECT(call1(d.session, "step", 9) == 0 && call1(d.session, "step", 0.5) == 0);
  grow(&d.u);
  narrow = register_narrow(d.session, "u", &d.u);
  while (call1(d.session, "step", 1.5) == 0) continue;
  EXPECT(number(d.session, "finish") == 1);
  expect_learned_within(d.session, 2, 1e-6);
  free(narrow);
  end(&d);
}

/* One trainer fails, or all do: both sides are told, and the solvers' session goes on. */
static void trainers_fail(const host* h, const char* settings) {
  divided d = start(h, settings);
  if (d.trains) {
    EXPECT_ERROR(mh_call(d.session, "serve", 0, NULL, 0, NULL), MH_SCRIPT, "the learning rate is negative");
  } else {
    double in = 0.5, out = 0;
    mh_status status = MH_OK;
    int calls = 0;
    while (status == MH_OK && ++calls < 100000000) status = mh_call(d.session, "step", 1, &in, 1, &out);
    EXPECT_ERROR(status, MH_SCRIPT, "the trainers have failed\n  have  ");
    EXPECT(strstr(mh_error(), "the learning rate is negative") != NULL);
    EXPECT(mh_call(d.session, "step", 1, &in, 1, &out) == MH_OK && out == 0);
    EXPECT_ERROR(mh_call(d.session, "step", 1, &in, 1, &out), MH_SCRIPT, "has ended before\n  have  the trainers have failed");
    expect_learned(d.session, 0);
  }
  end(&d);
}

void test_trainers(const host* h) {
  mh_session* session;
  mh_options options = options_for(h);
  learns_alike(h);
  solvers_do_not_wait(h);
  ends_early(h);
  changes_dtype(h);
  trainers_fail(h, "fails=all");
  trainers_fail(h, "fails=last");
  trainers_fail(h, "fails=late");
  options.settings = "trainers=9";
  EXPECT_ERROR(mh_open(&options, &session), MH_SCRIPT, "ranks cannot train");
}
