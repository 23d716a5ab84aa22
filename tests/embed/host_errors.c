/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes, which all ranks hear of alike, and faults, which the solver outlives (X15, X16). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

/* The same message on all ranks. */
static void expect_alike(const host* h) {
  char mine[2000] = "", first[2000];
  strncpy(mine, mh_error(), sizeof(mine) - 1);
  memcpy(first, mine, sizeof(first));
  MPI_Bcast(first, sizeof(first), MPI_CHAR, 0, h->comm);
  EXPECT(strcmp(first, mine) == 0);
}

static void errors_of_open(const host* h) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  mh_transport nothing;
  memset(&nothing, 0, sizeof(nothing));
  EXPECT_ERROR(mh_open(NULL, &session), MH_USAGE, "no options");
  EXPECT_ERROR(mh_open(&options, NULL), MH_USAGE, "no place for the session");
  options.script = NULL;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "no script");
  EXPECT(session == NULL);
  options = options_for(h);
  options.script = "no_such_file.lua";
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "cannot read the script 'no_such_file.lua'");
  expect_alike(h);
  options = options_for(h);
  options.settings = "lr";
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "'lr' is not of the form key=value");
  options = options_for(h);
  options.settings = "rl=3";
  EXPECT_ERROR(mh_open(&options, &session), MH_SCRIPT, "did you mean 'lr'?");
  EXPECT(strstr(mh_error(), "from the host's settings rl=3") != NULL);
  expect_alike(h);
  options = options_for(h);
  options.settings = h->rank == 0 ? "lr=1" : "lr=2";
  if (h->ranks > 1) EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "mh_open: ranks 0 and 1 want different settings");
  options = options_for(h);
  options.timeout_s = -1;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "timeout_s");
  options.timeout_s = 0;
  options.mpi_fcomm = (const int*)&nothing;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "2 communicators");
  options.mpi_fcomm = NULL;
  options.size = 8;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "options of an unknown size");
  options.size = sizeof(options);
  options.mpi_comm = NULL;
  options.transport = &nothing;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport of an unknown size");
  nothing.size = sizeof(nothing);
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport without all of its functions");
  EXPECT(session == NULL);
  EXPECT(mh_close(NULL) == MH_OK);
}

static void errors_of_fields(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  mh_block bad = p.block;
  const int last = h->ranks - 1;
  EXPECT_ERROR(mh_field(session, NULL, &bad), MH_USAGE, "no name");
  EXPECT_ERROR(mh_field(session, "u", NULL), MH_USAGE, "no field 'u' is registered");
  if (h->rank == last) bad.size = 4;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "a block of an unknown size");
  expect_alike(h);
  bad = p.block;
  if (h->rank == last) bad.data = NULL;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "block: no memory");
  expect_alike(h);
  bad = p.block;
  bad.dtype = 77;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "77 is no mh_dtype");
  bad = p.block;
  bad.ndim = 9;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "a block of 9 dims");
  bad = p.block;
  if (h->rank == last) bad.ghost_low[0] = 100;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "block: the ghosts of dim 0 do not fit into its extent");
  bad = p.block;
  bad.global[0] = 14;
  bad.global[1] = 11;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "mh_field('u'): boxes: nobody owns rows 13 to 14 of dim 0");
  bad.global[0] = 12;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "reaches beyond the field along dim 0");
  expect_alike(h);
  if (h->ranks > 1) {
    bad = p.block;
    bad.begin[0] = bad.begin[1] = 0; /* forgotten */
    EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "boxes: ranks 0 and 1 own the same elements");
    expect_alike(h);
    bad = p.block;
    if (h->rank == last) bad.begin[0] += 1;
    EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "boxes: ");
    bad = p.block;
    if (h->rank == last) bad.dtype = MH_FLOAT32;
    EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "block: ranks 0 and");
    EXPECT_ERROR(mh_field(session, h->rank == 0 ? "u" : "v", &p.block), MH_USAGE, "mh_field: ranks 0 and 1 want different fields");
  }
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  EXPECT_ERROR(mh_call(session, "train", 0, NULL, 0, NULL), MH_SCRIPT, "host: no field 'u' was registered");
  free(p.memory);
}

static void errors_of_calls(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  double out = 0;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT_ERROR(mh_call(session, "trian", 0, NULL, 0, NULL), MH_USAGE, "mh_call: the script has no function 'trian'; did you mean 'train'?");
  expect_alike(h);
  EXPECT_ERROR(mh_call(session, "print", 0, NULL, 0, NULL), MH_USAGE, "the script has no function 'print'");
  EXPECT_ERROR(mh_call(session, NULL, 0, NULL, 0, NULL), MH_USAGE, "no name of a function");
  EXPECT_ERROR(mh_call(session, "half", 1, NULL, 1, &out), MH_USAGE, "no place for numbers");
  EXPECT_ERROR(mh_call(session, "half", -1, &out, 1, &out), MH_USAGE, "negative counts");
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 1, &out), MH_SCRIPT, "'nothing' returned 0 values, 1 are wanted");
  EXPECT_ERROR(mh_call(session, "text", 0, NULL, 1, &out), MH_SCRIPT, "result 1 of 'text' is no number");
  EXPECT_ERROR(mh_call(session, "fails", 0, NULL, 0, NULL), MH_SCRIPT, "host.lua:69: the pressure is negative");
  EXPECT_ERROR(mh_call(session, "fails_deep", 0, NULL, 0, NULL), MH_SCRIPT,
               "is negative\n  69 | function fails() error(\"the pressure is negative\") end\nstack traceback:\n\t");
  EXPECT(strstr(mh_error(), "host.lua:72: in function 'fails_deep'") != NULL);
  expect_alike(h);
  EXPECT_ERROR(mh_call(session, "leaves", 0, NULL, 0, NULL), MH_SCRIPT, "the script called os.exit(5)");
  EXPECT_ERROR(mh_call(session, "reads_unknown", 0, NULL, 0, NULL), MH_SCRIPT, "no field 'uu' was registered; did you mean 'u'?");
  EXPECT_ERROR(mh_call(session, "out_of_memory", 0, NULL, 0, NULL), MH_MEMORY, "memory");
  EXPECT_ERROR(mh_save(session, NULL), MH_USAGE, "no path");
  EXPECT_ERROR(mh_load(session, "no_such_folder"), MH_SCRIPT, "no_such_folder");
  EXPECT_ERROR(mh_call(NULL, "nothing", 0, NULL, 0, NULL), MH_USAGE, "no session");
  /* After all that the session works. */
  EXPECT(mh_call(session, "train", 0, NULL, 1, &out) == MH_OK && out > 0);
  EXPECT(strcmp(mh_error(), "") == 0);
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  free(p.memory);
}

void test_errors(const host* h) {
  mh_session* session;
  errors_of_open(h);
  session = open_session(h, NULL);
  errors_of_fields(h, session);
  errors_of_calls(h, session);
  EXPECT(mh_close(session) == MH_OK);
}

/* Ranks call different functions, without and with a collective in them. */
static void ranks_part(const host* h) {
  mh_session* session = open_session(h, NULL);
  EXPECT_ERROR(mh_call(session, h->rank == 0 ? "nothing" : "fails", 0, NULL, 0, NULL), h->rank == 0 ? MH_USAGE : MH_SCRIPT, "");
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_RANK_LOST, "the session has ended before");
  EXPECT(mh_close(session) == MH_OK);
  session = open_session(h, NULL);
  EXPECT_ERROR(mh_call(session, h->rank == 0 ? "nothing" : "half", 0, NULL, 0, NULL), MH_USAGE, "mh_call('nothing')");
  expect_alike(h);
  EXPECT(mh_close(session) == MH_OK);
}

/* One rank fails while others wait for it: all return the same, and the solver goes on. Returns the seconds of the rank
   that took longest. */
static double one_failure(const host* h, const char* function, mh_status status, const char* text) {
  padded p = make_padded(h, 13, 11);
  mh_session *session = open_session(h, NULL), *other = open_session(h, NULL);
  double out = 0, seconds;
  int sum = 0;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &out) == MH_OK);
  seconds = MPI_Wtime();
  EXPECT_ERROR(mh_call(session, function, 0, NULL, 1, &out), status, text);
  seconds = MPI_Wtime() - seconds;
  expect_alike(h);
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_RANK_LOST, "the session has ended before");
  /* The solver's own MPI, and another session of the same ranks. */
  MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
  EXPECT(sum == h->ranks * (h->ranks - 1) / 2);
  EXPECT(mh_field(other, "u", &p.block) == MH_OK);
  EXPECT(mh_call(other, "train", 0, NULL, 1, &out) == MH_OK && out > 0);
  EXPECT(mh_close(session) == MH_OK);
  EXPECT(mh_call(other, "train", 0, NULL, 1, &out) == MH_OK);
  EXPECT(mh_close(other) == MH_OK);
  free(p.memory);
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, h->comm);
  return seconds;
}

/* Within a second, of a limit of 20. A machine that is busy may need another try. */
static void one_rank_fails(const host* h, const char* function, mh_status status, const char* text) {
  double least = 20;
  int tries;
  for (tries = 0; tries < 5 && least > 1; ++tries) {
    const double seconds = one_failure(h, function, status, text);
    least = seconds < least ? seconds : least;
  }
  if (h->rank == 0) printf("%s: all ranks know after %.3f s\n", function, least);
  EXPECT(least <= 1);
}

/* One rank waits in the solver's own MPI while others call: these return after the limit, it does as soon as it calls,
   and the solver goes on, with another session too. */
static void one_rank_is_silent(const host* h) {
  padded p = make_padded(h, 13, 11);
  mh_session *session = NULL, *other;
  mh_options options = options_for(h);
  double out = 0, seconds;
  int sum = 0;
  options.timeout_s = 1;
  EXPECT(mh_open(&options, &session) == MH_OK);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &out) == MH_OK);
  if (h->rank == 1) MPI_Recv(&sum, 1, MPI_INT, 0, 5, h->comm, MPI_STATUS_IGNORE);
  seconds = MPI_Wtime();
  EXPECT_ERROR(mh_call(session, "train", 0, NULL, 1, &out), MH_RANK_LOST, h->rank == 1 ? "" : "timed out after 1 s");
  EXPECT(MPI_Wtime() - seconds < 10); /* the limit is 1 s */
  if (h->rank == 0) MPI_Send(&sum, 1, MPI_INT, 1, 5, h->comm);
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_RANK_LOST, "the session has ended before");
  EXPECT(mh_close(session) == MH_OK);
  MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
  EXPECT(sum == h->ranks * (h->ranks - 1) / 2);
  other = open_session(h, NULL);
  EXPECT(mh_field(other, "u", &p.block) == MH_OK);
  EXPECT(mh_call(other, "train", 0, NULL, 1, &out) == MH_OK && out > 0);
  EXPECT(mh_close(other) == MH_OK);
  free(p.memory);
}

/* The caller has ended its MPI before the sessions: a status and a text, and the sessions close. Ends MPI. */
void test_finalised(const host* h) {
  padded p = make_padded(h, 13, 11);
  mh_session *used = open_session(h, NULL), *unused = open_session(h, NULL);
  double out = 0;
  EXPECT(mh_field(used, "u", &p.block) == MH_OK);
  EXPECT(mh_call(used, "train", 0, NULL, 1, &out) == MH_OK);
  MPI_Finalize();
  if (mh_call(used, "train", 0, NULL, 1, &out) != MH_RANK_LOST || strstr(mh_error(), "finalised") == NULL) {
    fprintf(stderr, "after MPI_Finalize: %s\n", mh_error());
    exit(1);
  }
  if (mh_field(used, "u", NULL) != MH_RANK_LOST || mh_close(used) != MH_OK || mh_close(unused) != MH_OK) {
    fprintf(stderr, "closing after MPI_Finalize: %s\n", mh_error());
    exit(1);
  }
  free(p.memory);
}

/* One rank cannot run the script, while others wait in it. */
static void one_rank_cannot_start(const host* h) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.settings = "failing_rank=1";
  EXPECT_ERROR(mh_open(&options, &session), MH_SCRIPT, "this rank cannot start\n  6 | if mh.rank()");
  EXPECT(strstr(mh_error(), "\n  rank  1 of ") != NULL);
  EXPECT(session == NULL);
  expect_alike(h);
}

/* Compiled with another MPI than Moonhalo: it knows none of its communicators. */
void test_foreign(const host* h) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  const int handle = (int)MPI_Comm_c2f(h->comm);
  options.script = script;
  options.mpi_comm = &h->comm;
  EXPECT_ERROR(mh_open(&options, &session), MH_UNSUPPORTED, "the program's MPI is another than the one that Moonhalo was built with");
  expect_alike(h);
  options.mpi_comm = NULL;
  options.mpi_fcomm = &handle;
  EXPECT_ERROR(mh_open(&options, &session), MH_UNSUPPORTED, "mh_mpi_transport of <moonhalo/moonhalo_mpi.h>");
}

void test_faults(const host* h) {
  one_rank_cannot_start(h);
  ranks_part(h);
  one_rank_fails(h, "fails_on_rank_1", MH_SCRIPT, "rank 1 alone has failed");
  /* Others compute for 0.3 s of their own before they come. */
  EXPECT(one_failure(h, "fails_before_others_come", MH_SCRIPT, "rank 1 alone has failed") < 15);
  one_rank_fails(h, "fails_on_rank_1", MH_SCRIPT, "\n  rank  1 of ");
  one_rank_fails(h, "runs_short_on_rank_1", MH_MEMORY, "memory");
  one_rank_is_silent(h);
}
