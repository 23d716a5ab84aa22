/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not end by themselves (X16): a budget ends them, and so does the loss of the other ranks. */
#include <string.h>

#include "host.h"

static mh_session* open_limited(const host* h, double timeout_s, double call_budget_s) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.timeout_s = timeout_s;
  options.call_budget_s = call_budget_s;
  EXPECT(mh_open(&options, &session) == MH_OK);
  return session;
}

static void expect_mpi_goes_on(const host* h) {
  int sum = 0;
  MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
  EXPECT(sum == h->ranks * (h->ranks - 1) / 2);
}

/* Loops, also where they are protected, in coroutines and in handlers. One rank goes on with its session. */
static void a_budget_ends_it(const host* h) {
  static const char* const endless[] = {"loops", "loops_protected", "loops_in_coroutine", "loops_in_handler"};
  double number = 3, out = 0;
  size_t i;
  for (i = 0; i < sizeof(endless) / sizeof(endless[0]); ++i) {
    mh_session* session = open_limited(h, 60, 0.5);
    EXPECT_ERROR(mh_call(session, endless[i], 0, NULL, 0, NULL), MH_SCRIPT,
                 "the function did not end within its budget");
    EXPECT(strstr(mh_error(), "host.lua:") != NULL && strstr(mh_error(), "have  call_budget_s = 0.5 s") != NULL);
    if (h->ranks == 1) {
      EXPECT(mh_call(session, "half", 1, &number, 1, &out) == MH_OK && out == 1.5);
    } else {
      EXPECT_ERROR(mh_call(session, "half", 1, &number, 1, &out), MH_RANK_LOST, "the session has ended before");
    }
    EXPECT(mh_close(session) == MH_OK);
    expect_mpi_goes_on(h);
  }
}

/* One rank alone loops while others wait for it. */
static void one_rank_loops(const host* h) {
  padded p = make_padded(h, 13, 11);
  mh_session* session;
  double out = 0;
  if (h->ranks == 1) return;
  session = open_limited(h, 60, 0.5);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT_ERROR(mh_call(session, "loops_on_rank_1", 0, NULL, 1, &out), MH_SCRIPT,
               "did not end within its budget on rank ");
  EXPECT(mh_close(session) == MH_OK);
  expect_mpi_goes_on(h);
  /* Without a budget: the others give up after their limit, and so it ends. */
  session = open_limited(h, 1, 0);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT_ERROR(mh_call(session, "loops_on_rank_1", 0, NULL, 1, &out), MH_RANK_LOST,
               h->rank == 1 ? "the other ranks do not wait for this call any more" : "");
  EXPECT(mh_close(session) == MH_OK);
  expect_mpi_goes_on(h);
  free(p.memory);
}

/* A call that ends in time, and the one after it, have a whole budget each. */
static void a_budget_is_of_one_call(const host* h) {
  mh_session* session = open_limited(h, 60, 20);
  double number = 3, out = 0;
  EXPECT(mh_call(session, "half", 1, &number, 1, &out) == MH_OK && out == 1.5);
  EXPECT(mh_call_begin(session, "half", 1, &number) == MH_OK && mh_call_end(session, 1, &out) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  session = open_limited(h, 60, 0.5);
  EXPECT(mh_call_begin(session, "loops", 0, NULL) == MH_OK);
  EXPECT_ERROR(mh_call_end(session, 0, NULL), MH_SCRIPT,
               "mh_call('loops'): the function did not end within its budget");
  EXPECT(mh_close(session) == MH_OK);
}

/* A rank that is silent costs the others their limit once: the wait in the call and the wait for its agreement are one.
   Whether it did; a busy machine may be late, but not by a limit that is long enough. */
static int counts_once(const host* h, double limit) {
  padded p = make_padded(h, 13, 11);
  mh_session* session;
  double out = 0, seconds;
  int go = 0, once;
  session = open_limited(h, limit, 0);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  if (h->rank == 1) MPI_Recv(&go, 1, MPI_INT, 0, 5, h->comm, MPI_STATUS_IGNORE);
  seconds = MPI_Wtime();
  EXPECT_ERROR(mh_call(session, "train", 0, NULL, 1, &out), MH_RANK_LOST, "");
  seconds = MPI_Wtime() - seconds;
  if (h->rank == 0) MPI_Send(&go, 1, MPI_INT, 1, 5, h->comm);
  EXPECT(h->rank == 1 || seconds >= limit);
  once = h->rank == 1 || seconds < 2 * limit;
  EXPECT(mh_close(session) == MH_OK);
  expect_mpi_goes_on(h);
  free(p.memory);
  MPI_Allreduce(MPI_IN_PLACE, &once, 1, MPI_INT, MPI_MIN, h->comm);
  return once;
}

static void a_limit_counts_once(const host* h) {
  if (h->ranks == 1) return;
  EXPECT(counts_once(h, 5) || counts_once(h, 30));
}

void test_budget(const host* h) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.call_budget_s = -1;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "call_budget_s -1");
  a_budget_ends_it(h);
  one_rank_loops(h);
  a_budget_is_of_one_call(h);
  a_limit_counts_once(h);
}
