/* SPDX-License-Identifier: Apache-2.0 */
/* Several sessions, many sessions, and what outlives one (X15). */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

static double draw(mh_session* session) {
  double out = 0;
  EXPECT(mh_call(session, "draw", 0, NULL, 1, &out) == MH_OK);
  return out;
}

/* Each draws its own random numbers, whoever else has a session. */
static void beside_one_another(const host* h) {
  mh_session *a = open_session(h, NULL), *b = open_session(h, NULL);
  const double seed = 7;
  double first[2], second;
  EXPECT(mh_call(a, "seed", 1, &seed, 0, NULL) == MH_OK);
  EXPECT(mh_call(b, "seed", 1, &seed, 0, NULL) == MH_OK);
  first[0] = draw(a);
  first[1] = draw(a);
  EXPECT(first[0] == draw(b));
  second = draw(a);
  EXPECT(mh_close(a) == MH_OK);
  EXPECT(first[1] == draw(b) && second == draw(b));
  EXPECT(mh_close(b) == MH_OK);
}

/* Y13: ranges of the solver are in the profile of each session, once. */
static void with_profiles(const host* h) {
  mh_session *a = open_session(h, NULL), *b = open_session(h, NULL);
  double found = 0;
  EXPECT(mh_call(a, "begin_profile", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_range_begin("sweep") == MH_OK);
  EXPECT(mh_call(b, "begin_profile", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_range_begin("inner") == MH_OK);
  EXPECT(mh_call(a, "ranges_found", 0, NULL, 1, &found) == MH_OK && found == 2);
  EXPECT(mh_range_end() == MH_OK && mh_range_end() == MH_OK);
  EXPECT(mh_call(b, "ranges_found", 0, NULL, 1, &found) == MH_OK && found == 1);
  EXPECT(mh_close(a) == MH_OK && mh_close(b) == MH_OK);
}

/* Half of the ranks have a session of their own. */
static void of_some_ranks(const host* h) {
  MPI_Comm part;
  host half;
  MPI_Comm_split(h->comm, h->rank % 2, h->rank, &part);
  divide(&half, part);
  if (h->rank % 2 == 0) {
    padded p = make_padded(&half, 13, 11);
    mh_session* session = open_session(&half, NULL);
    EXPECT(mh_field(session, "u", &p.block) == MH_OK);
    EXPECT(call1(session, "train", 0) > 0);
    EXPECT(mh_close(session) == MH_OK);
    free(p.memory);
  }
  MPI_Comm_free(&part);
  MPI_Barrier(h->comm);
}

static void of_one_rank(void) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  options.script = script;
  EXPECT(mh_open(&options, &session) == MH_OK);
  EXPECT(call1(session, "half", 5) == 2.5);
  EXPECT(mh_close(session) == MH_OK);
}

static void from_fortran_handle(const host* h) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  const int handle = (int)MPI_Comm_c2f(h->comm);
  options.script = script;
  options.mpi_fcomm = &handle;
  EXPECT(mh_open(&options, &session) == MH_OK);
  EXPECT(mh_call(session, "nothing", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
}

/* Bytes that malloc has given to the program and not got back. */
static size_t bytes_in_use(void) {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/* Opened, used and closed again and again: after the first ones, which fill caches of the process, memory stays. */
static void many_times(const host* h) {
  enum { kFirst = 20, kSessions = 100, kBytesEach = 1024 };
  size_t before = 0, after;
  int i;
  for (i = 0; i < kSessions; ++i) {
    padded p = make_padded(h, 13, 11);
    mh_session* session = open_session(h, NULL);
    if (i == kFirst) before = bytes_in_use();
    EXPECT(mh_field(session, "u", &p.block) == MH_OK);
    if (i % 10 == 0) EXPECT(call1(session, "train", 0) > 0);
    EXPECT(mh_close(session) == MH_OK);
    MPI_Barrier(h->comm); /* others may still talk over it */
    free_transport();
    free(p.memory);
  }
  {
    mh_session* session = open_session(h, NULL); /* as it was when the memory was measured first */
    after = bytes_in_use();
    EXPECT(mh_close(session) == MH_OK);
  }
  if (h->rank == 0) printf("%d sessions: %ld bytes more in use\n", kSessions - kFirst, (long)after - (long)before);
  EXPECT(after < before + (kSessions - kFirst) * kBytesEach);
}

void test_sessions(const host* h) {
  beside_one_another(h);
  with_profiles(h);
  of_some_ranks(h);
  of_one_rank();
  if (options_for(h).transport == NULL) from_fortran_handle(h);
  many_times(h);
}

/* A tensor, or a number, that the checkpoint lacks is an error as a model is, and nothing has changed. */
static void state_that_was_not_saved(mh_session* session, const char* folder) {
  double before[2], after[2];
  EXPECT(mh_call(session, "train", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_call(session, "learned", 0, NULL, 2, before) == MH_OK);
  EXPECT(mh_call(session, "remembers_more", 0, NULL, 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_load(session, folder), MH_SCRIPT, "has no entry 'mean'");
  EXPECT(strstr(mh_error(), "\n  fix   use one of these names") != NULL);
  EXPECT(mh_call(session, "counts_more", 0, NULL, 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_load(session, folder), MH_SCRIPT, "has no entry 'counter'");
  EXPECT(mh_call(session, "learned", 0, NULL, 2, after) == MH_OK);
  EXPECT(before[0] == after[0] && before[1] == after[1]);
}

/* Saved and restored: the same weights as without the interruption. */
void test_state(const host* h) {
  char folder[300];
  padded p = make_padded(h, 13, 11);
  mh_session *session = open_session(h, NULL), *again;
  double before[2], after[2], loss = 0, resumed = 0;
  int i;
  own_path(folder, sizeof(folder), "state");
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  for (i = 0; i < 3; ++i) EXPECT(mh_call(session, "train", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_save(session, folder) == MH_OK);
  EXPECT(mh_call(session, "learned", 0, NULL, 2, before) == MH_OK && before[1] == 3);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &loss) == MH_OK);

  again = open_session(h, NULL);
  EXPECT(mh_field(again, "u", &p.block) == MH_OK);
  EXPECT(mh_load(again, folder) == MH_OK);
  EXPECT(mh_call(again, "learned", 0, NULL, 2, after) == MH_OK);
  EXPECT(before[0] == after[0] && after[1] == 3);
  EXPECT(mh_call(again, "train", 0, NULL, 1, &resumed) == MH_OK && fabs(resumed - loss) <= 1e-13 * loss);
  state_that_was_not_saved(again, folder);
  EXPECT(mh_close(session) == MH_OK && mh_close(again) == MH_OK);
  free(p.memory);
}
