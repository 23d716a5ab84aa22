/* SPDX-License-Identifier: Apache-2.0 */
/* A call that runs beside the solver (X15). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

static void fill(const padded* p, double value) {
  int64_t i, j;
  for (i = 0; i < p->height; ++i) {
    for (j = 0; j < p->width; ++j) *at(p, i, j) = value;
  }
}

/* The call sees the field as it was, while the solver goes on in its memory and talks over its own communicator. */
static void solver_goes_on(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  double out[2] = {0, 0};
  const double rounds = 200;
  int i, sum = 0;
  fill(&p, 1);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call_begin(session, "slow_sum", 1, &rounds) == MH_OK);
  for (i = 0; i < 50; ++i) {
    fill(&p, 2 + i);
    MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
  }
  EXPECT(sum == h->ranks * (h->ranks - 1) / 2);
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_USAGE,
               "mh_call('nothing'): a call is under way\n  have  mh_call_begin('slow_sum')");
  EXPECT_ERROR(mh_field(session, "u", NULL), MH_USAGE, "mh_field: a call is under way");
  EXPECT_ERROR(mh_call_begin(session, "nothing", 0, NULL), MH_USAGE, "a call is under way");
  {
    char report[2000];
    EXPECT_ERROR(mh_report(session, report, sizeof(report)), MH_USAGE, "mh_report: a call is under way");
  }
  EXPECT(mh_call_end(session, 2, out) == MH_OK);
  EXPECT(out[0] == 143 && out[1] == 143);
  /* Now the script sees the solver's memory again, in place. */
  EXPECT(mh_call(session, "slow_sum", 0, NULL, 1, out) == MH_OK && out[0] == 143 * 51);
  EXPECT(changed_outside(&p) == 0);
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  free(p.memory);
}

/* The same weights as by calls that the solver waits for. */
static void trains_alike(const host* h) {
  mh_session *a = open_session(h, NULL), *b = open_session(h, NULL);
  padded p = make_padded(h, 13, 11);
  double beside[3], waited[3];
  int i;
  EXPECT(mh_field(a, "u", &p.block) == MH_OK && mh_field(b, "u", &p.block) == MH_OK);
  for (i = 0; i < 3; ++i) {
    /* Both at once: each session has ranks of its own. */
    EXPECT(mh_call_begin(a, "train", 0, NULL) == MH_OK);
    EXPECT(mh_call(b, "train", 0, NULL, 0, NULL) == MH_OK);
    EXPECT(mh_call_end(a, 0, NULL) == MH_OK);
  }
  EXPECT(mh_call(a, "learned", 0, NULL, 3, beside) == MH_OK && mh_call(b, "learned", 0, NULL, 3, waited) == MH_OK);
  EXPECT(memcmp(beside, waited, sizeof(beside)) == 0 && beside[1] == 3);
  EXPECT(mh_close(a) == MH_OK && mh_close(b) == MH_OK);
  free(p.memory);
}

/* A session waits for a rank that computes in it, and meanwhile another for another: no rank is stuck. */
static void waits_in_two(const host* h) {
  mh_session *a = open_session(h, NULL), *b = open_session(h, NULL);
  padded p = make_padded(h, 13, 11);
  const double first = 0, last = h->ranks - 1;
  double sum[2] = {0, 1};
  EXPECT(mh_field(a, "u", &p.block) == MH_OK && mh_field(b, "u", &p.block) == MH_OK);
  EXPECT(mh_call_begin(a, "comes_late", 1, &last) == MH_OK);
  EXPECT(mh_call(b, "comes_late", 1, &first, 1, sum) == MH_OK);
  EXPECT(mh_call_end(a, 1, sum + 1) == MH_OK && fabs(sum[0] - sum[1]) < 1e-12 * sum[0]);
  EXPECT(mh_close(a) == MH_OK && mh_close(b) == MH_OK);
  free(p.memory);
}

/* But where the ranks wait for each other in two sessions, they are told, and not by the limit. */
static void stuck_in_two(const host* h) {
  mh_session *a = open_session(h, NULL), *b = open_session(h, NULL);
  mh_call_begin(a, "nothing", 0, NULL);
  mh_call_end(a, 0, NULL);
  EXPECT_ERROR(mh_sync(h->rank == 0 ? a : b), MH_USAGE, "all ranks wait for each other");
  EXPECT(mh_close(a) == MH_OK && mh_close(b) == MH_OK);
}

/* Errors come with the end; those that are alike leave the session as it was. */
static void fails(const host* h, mh_session* session) {
  double out[2];
  EXPECT_ERROR(mh_call_end(session, 0, NULL), MH_USAGE, "mh_call_end: no call is under way");
  EXPECT_ERROR(mh_call_begin(session, NULL, 0, NULL), MH_USAGE, "no name of a function");
  EXPECT(mh_call_begin(session, "trian", 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_call_end(session, 0, NULL), MH_USAGE, "did you mean 'train'?");
  EXPECT(mh_call_begin(session, "fails", 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_call_end(session, 0, NULL), MH_SCRIPT, "the pressure is negative");
  EXPECT(mh_call_begin(session, "half", 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_call_end(session, 2, out), MH_SCRIPT, "'half' returned 1 values, 2 are required");
  EXPECT(mh_call_begin(session, "text", 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_call_end(session, 1, out), MH_SCRIPT, "result 1 of 'text' is not a number");
  EXPECT(call1(session, "half", 3) == 1.5);
  if (h->ranks > 1) {
    mh_session* lost = open_session(h, NULL);
    padded p = make_padded(h, 13, 11);
    int sum = 0;
    EXPECT(mh_field(lost, "u", &p.block) == MH_OK);
    EXPECT(mh_call_begin(lost, "fails_on_rank_1", 0, NULL) == MH_OK);
    MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
    EXPECT_ERROR(mh_call_end(lost, 0, NULL), MH_SCRIPT, "rank 1 alone has failed");
    EXPECT_ERROR(mh_call_begin(lost, "nothing", 0, NULL), MH_RANK_LOST, "the session has ended before");
    EXPECT(mh_close(lost) == MH_OK);
    free(p.memory);
  }
}

void test_beside(const host* h) {
  mh_session* session = open_session(h, NULL);
  int level;
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_MULTIPLE && h->ranks > 1) {
    EXPECT_ERROR(mh_call_begin(session, "nothing", 0, NULL), MH_UNSUPPORTED, "allows no other thread to communicate");
    EXPECT(call1(session, "half", 3) == 1.5);
    EXPECT(mh_close(session) == MH_OK);
    return;
  }
  solver_goes_on(h, session);
  trains_alike(h);
  waits_in_two(h);
  if (h->ranks > 1 && options_for(h).transport == NULL) stuck_in_two(h);
  fails(h, session);
  /* Closed while a call is under way, which is waited for. */
  EXPECT(mh_call_begin(session, "nothing", 0, NULL) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
}
