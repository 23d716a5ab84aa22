/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes, which all ranks hear of alike, and faults, which the solver outlives (X15, X16). */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

/* Where there is no MPI that could abort. */
static void expect_early(mh_status status, const char* text) {
  if (status == MH_USAGE && strstr(mh_error(), text) != NULL) return;
  fprintf(stderr, "before MPI: %s\n", mh_error());
  exit(1);
}

/* The same message on all ranks. */
static void expect_alike(const host* h) {
  char mine[2000] = "", first[2000];
  strncpy(mine, mh_error(), sizeof(mine) - 1);
  memcpy(first, mine, sizeof(first));
  MPI_Bcast(first, sizeof(first), MPI_CHAR, 0, h->comm);
  EXPECT(strcmp(first, mine) == 0);
}

/* Its options are for one mh_open, as a transport is. */
static void expect_error_of_settings(const host* h, const char* settings, mh_status status, const char* text) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.settings = settings;
  EXPECT_ERROR(mh_open(&options, &session), status, text);
  EXPECT(session == NULL);
}

static void errors_of_settings(const host* h) {
  expect_error_of_settings(h, "lr", MH_USAGE, "'lr' is not of the form key=value");
  expect_error_of_settings(h, "lr=\"3 4", MH_USAGE, "'lr=\"3' has no closing quote");
  expect_error_of_settings(h, "lr=1 rl=\"3 4\"", MH_SCRIPT, "from the host's settings rl=3 4");
  expect_error_of_settings(h, "rl=3", MH_SCRIPT, "did you mean 'lr'?");
  EXPECT(strstr(mh_error(), "from the host's settings rl=3") != NULL);
  expect_alike(h);
  if (h->ranks == 1) return;
  expect_error_of_settings(h, h->rank == 0 ? "lr=1" : "lr=2", MH_USAGE,
                           "mh_open: ranks 0 and 1 want different settings");
}

/* Of a script that cannot be read. */
static void errors_of_scripts(const host* h) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.script = NULL;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "no script");
  EXPECT(session == NULL);
  options = options_for(h);
  options.script = "no_such_file.lua";
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE,
               "cannot read the script 'no_such_file.lua'\n  have  No such file or directory\n  fix   ");
  expect_alike(h);
  options = options_for(h);
  options.script = "/";
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "cannot read the script '/'\n  have  Is a directory\n");
}

static void errors_of_open(const host* h) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  mh_transport nothing;
  memset(&nothing, 0, sizeof(nothing));
  EXPECT_ERROR(mh_open(NULL, &session), MH_USAGE, "no options");
  EXPECT_ERROR(mh_open(&options, NULL), MH_USAGE, "no place for the session");
  errors_of_scripts(h);
  errors_of_settings(h);
  options = options_for(h);
  options.timeout_s = -1;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "timeout_s");
  options = options_for(h);
  options.mpi_fcomm = (const int*)&nothing;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "2 communicators");
  options = options_for(h);
  options.size = 8;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "options of an unknown size");
  options.size = sizeof(options);
  options.mpi_comm = NULL;
  options.transport = &nothing;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport of an unknown size");
  nothing.size = sizeof(nothing);
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport without all of its functions");
  EXPECT(session == NULL);
  errors_of_transports(options);
  EXPECT(mh_close(NULL) == MH_OK);
}

/* Where one rank alone gives what cannot be, all hear of it. */
static void errors_of_open_on_one_rank(const host* h) {
  mh_session* session = NULL;
  const int wrong = h->rank == 1;
  mh_options options;
  MPI_Comm other;
  int handle = 0;
  if (h->ranks == 1) return;
  options = options_for(h);
  if (wrong) options.timeout_s = -1;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "mh_open: timeout_s");
  expect_alike(h);
  options = options_for(h);
  EXPECT_ERROR(mh_open(&options, wrong ? NULL : &session), MH_USAGE, "mh_open: no place for the session");
  expect_alike(h);
  options = options_for(h);
  if (wrong) options.script = NULL;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "mh_open: no script");
  expect_alike(h);
  options = options_for(h);
  if (options.transport != NULL) return;
  if (wrong) options.mpi_fcomm = &handle;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "mh_open: 2 communicators");
  expect_alike(h);
  /* One that is not among the others cannot tell them: they give up after the limit. */
  MPI_Comm_dup(h->comm, &other); /* which is of no use after that: some have begun to duplicate it */
  if (wrong) other = MPI_COMM_NULL;
  options = options_for(h);
  options.mpi_comm = &other;
  options.timeout_s = 1;
  EXPECT_ERROR(mh_open(&options, &session), wrong ? MH_USAGE : MH_RANK_LOST,
               wrong ? "MPI_COMM_NULL" : "timed out after 1 s");
  EXPECT(session == NULL);
  MPI_Barrier(h->comm);
}

/* What a session with these settings writes to stderr while it opens. */
static void said_of_settings(const host* h, const char* path, const char* settings, char* said, size_t size) {
  char name[40], log[1000];
  const int error = dup(2);
  mh_session* session = NULL;
  mh_options options = options_for(h);
  mh_status status;
  FILE* file;
  options.script = path;
  options.settings = settings;
  snprintf(name, sizeof(name), "stderr_%d", h->rank);
  own_path(log, sizeof(log), name);
  EXPECT(freopen(log, "w", stderr) != NULL);
  status = mh_open(&options, &session);
  fflush(stderr);
  dup2(error, 2);
  close(error);
  EXPECT(status == MH_OK && mh_close(session) == MH_OK);
  file = fopen(log, "r");
  EXPECT(file != NULL);
  said[fread(said, 1, size - 1, file)] = '\0';
  fclose(file);
}

/* Rank 0 says that settings have no effect, and nothing where they have one. */
static void settings_that_are_not_read(const host* h) {
  char path[1000], said[2000], wanted[1200];
  own_path(path, sizeof(path), "reads_nothing.lua");
  if (h->rank == 0) {
    FILE* file = fopen(path, "w");
    EXPECT(file != NULL && fputs("function nothing() end\n", file) >= 0 && fclose(file) == 0);
  }
  MPI_Barrier(h->comm);
  said_of_settings(h, path, "lr=1", said, sizeof(said));
  snprintf(wanted, sizeof(wanted), "moonhalo: the host's settings had no effect: %s does not call mh.config\n", path);
  EXPECT(strcmp(said, h->rank == 0 ? wanted : "") == 0);
  said_of_settings(h, path, NULL, said, sizeof(said));
  EXPECT(strcmp(said, "") == 0);
  said_of_settings(h, script, "lr=1", said, sizeof(said));
  EXPECT(strcmp(said, "") == 0);
}

static void errors_of_closed(const host* h) {
  mh_session *session = open_session(h, NULL), *other = open_session(h, NULL);
  double number = 3, out = 0;
  mh_block block;
  char report[100];
  memset(&block, 0, sizeof(block));
  EXPECT(mh_close(session) == MH_OK);
  EXPECT_ERROR(mh_call(session, "half", 1, &number, 1, &out), MH_USAGE,
               "mh_call: the session is closed\n  have  a call after its mh_close");
  EXPECT_ERROR(mh_field(session, "u", &block), MH_USAGE, "mh_field: the session is closed");
  EXPECT_ERROR(mh_field(session, "u", NULL), MH_USAGE, "mh_field: the session is closed");
  EXPECT_ERROR(mh_boxes(session, "u", 1, &block), MH_USAGE, "mh_boxes: the session is closed");
  EXPECT_ERROR(mh_call_begin(session, "half", 1, &number), MH_USAGE, "mh_call_begin: the session is closed");
  EXPECT_ERROR(mh_call_end(session, 0, NULL), MH_USAGE, "mh_call_end: the session is closed");
  EXPECT_ERROR(mh_save(session, "x"), MH_USAGE, "mh_save: the session is closed");
  EXPECT_ERROR(mh_load(session, "x"), MH_USAGE, "mh_load: the session is closed");
  EXPECT_ERROR(mh_sync(session), MH_USAGE, "mh_sync: the session is closed");
  EXPECT_ERROR(mh_report(session, report, sizeof(report)), MH_USAGE, "mh_report: the session is closed");
  EXPECT_ERROR(mh_close(session), MH_USAGE, "mh_close: the session is closed");
  EXPECT_ERROR(mh_sync((mh_session*)&block), MH_USAGE,
               "mh_sync: no session\n  have  an address that mh_open has not given");
  EXPECT(call1(other, "half", 3) == 1.5);
  EXPECT(mh_close(other) == MH_OK);
}

/* Extents that differ along a dim that is not cut; a rank without boxes. Errors name the field, and say of Fortran's
   arrays how they count; the session goes on. */
static void errors_of_shapes(const host* h, mh_session* session) {
  double memory[40] = {0};
  mh_block block;
  const int last = h->rank == h->ranks - 1;
  if (h->ranks == 1) return;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = memory;
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  block.order = MH_FIRST_FASTEST;
  block.extent[0] = last ? 5 : 4;
  block.extent[1] = 3;
  block.begin[1] = 3 * h->rank;
  EXPECT_ERROR(mh_field(session, "m", &block), MH_USAGE,
               "mh_field('m'): boxes: the boxes form no grid along dim 1: ranks 0 and ");
  EXPECT(strstr(mh_error(), "begin at one row with different extents\n  have  rank 0: rows 0 to 4; rank ") != NULL);
  EXPECT(strstr(mh_error(), "rows 0 to 5") != NULL &&
         strstr(mh_error(), "\n  note  dim 0 here is the array's last") != NULL);
  expect_alike(h);
  block.begin[0] = -2;
  EXPECT_ERROR(mh_boxes(session, "m", last ? 0 : 1, &block), MH_USAGE,
               "mh_boxes('m'): boxes: a box reaches beyond the field");
  EXPECT(strstr(mh_error(), "\n  note  dim 0 here is the array's last") != NULL);
  expect_alike(h);
  block.begin[0] = 0;
  block.dtype = 77;
  EXPECT_ERROR(mh_boxes(session, "m", 1, &block), MH_USAGE, "mh_boxes('m'): 77 is not a mh_dtype");
  EXPECT(mh_sync(session) == MH_OK);
}

/* Numbers of a block that was not initialised, and blocks whose elements share memory or lie between addresses: an
   error on all ranks, of fields and of boxes, and the session goes on. */
static void errors_of_memory(const host* h, mh_session* session) {
  double memory[64] = {0};
  mh_block good, bad;
  const int last = h->rank == h->ranks - 1;
  int i;
  memset(&good, 0, sizeof(good));
  good.size = sizeof(good);
  good.data = memory;
  good.dtype = MH_FLOAT64;
  good.ndim = 2;
  good.extent[0] = 4;
  good.extent[1] = 10;
  good.begin[0] = 4 * h->rank;
  for (i = 0; i < 8; ++i) {
    const char* text = "block: its memory would reach beyond all addresses";
    bad = good;
    if (i == 0) bad.extent[0] = (int64_t)1 << 62;
    if (i == 1) bad.extent[0] = bad.extent[1] = (int64_t)1 << 40;
    if (i == 2) bad.stride[0] = (int64_t)1 << 62, bad.stride[1] = 1;
    if (i == 3) bad.begin[0] = INT64_MAX;
    if (i == 3) text = "block: dim 0 ends beyond all numbers";
    if (i == 4) bad.ghost_low[0] = bad.ghost_high[0] = INT64_MAX;
    if (i == 4) text = "block: the ghosts of dim 0 do not fit into its extent";
    if (i == 5) bad.stride[0] = bad.stride[1] = 1;
    if (i == 6) bad.stride[0] = 9, bad.stride[1] = 1, bad.ghost_low[1] = 1; /* rows reach into the next one's ghost */
    if (i == 5 || i == 6) text = "block: elements share memory\n  have  extents [4, 10] with strides [";
    if (i == 7) bad.data = (char*)memory + 4;
    if (i == 7) text = "block: its address is not a multiple of 8 bytes";
    EXPECT_ERROR(mh_field(session, "m", last ? &bad : &good), MH_USAGE, text);
    expect_alike(h);
    EXPECT_ERROR(mh_boxes(session, "m", 1, last ? &bad : &good), MH_USAGE, text);
    expect_alike(h);
  }
  /* Complex numbers are pairs; rows may be any elements apart. */
  good.dtype = MH_COMPLEX64;
  good.data = (char*)memory + 4;
  good.extent[0] = 2;
  good.begin[0] = 2 * h->rank;
  good.stride[0] = 13;
  good.stride[1] = 1;
  EXPECT(mh_field(session, "m", &good) == MH_OK && mh_field(session, "m", NULL) == MH_OK);
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
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "77 is not a mh_dtype");
  bad = p.block;
  bad.ndim = 9;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "a block of 9 dims");
  bad = p.block;
  if (h->rank == last) bad.ghost_low[0] = 100;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "block: the ghosts of dim 0 do not fit into its extent");
  bad = p.block;
  bad.global[0] = 14;
  bad.global[1] = 11;
  EXPECT_ERROR(mh_field(session, "u", &bad), MH_USAGE, "mh_field('u'): boxes: no rank owns rows 13 to 14 of dim 0");
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
    EXPECT_ERROR(mh_field(session, h->rank == 0 ? "u" : "v", &p.block), MH_USAGE,
                 "mh_field: ranks 0 and 1 want different fields");
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
  EXPECT_ERROR(mh_call(session, "trian", 0, NULL, 0, NULL), MH_USAGE,
               "mh_call: the script has no function 'trian'; did you mean 'train'?");
  expect_alike(h);
  EXPECT_ERROR(mh_call(session, "print", 0, NULL, 0, NULL), MH_USAGE, "the script has no function 'print'");
  EXPECT_ERROR(mh_call(session, NULL, 0, NULL, 0, NULL), MH_USAGE, "no name of a function");
  EXPECT_ERROR(mh_call(session, "half", 1, NULL, 1, &out), MH_USAGE, "no place for numbers");
  EXPECT_ERROR(mh_call(session, "half", -1, &out, 1, &out), MH_USAGE, "negative counts");
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 1, &out), MH_SCRIPT, "'nothing' returned 0 values, 1 are required");
  EXPECT_ERROR(mh_call(session, "text", 0, NULL, 1, &out), MH_SCRIPT, "result 1 of 'text' is not a number");
  EXPECT_ERROR(mh_call(session, "fails", 0, NULL, 0, NULL), MH_SCRIPT, "host.lua:69: the pressure is negative");
  EXPECT_ERROR(mh_call(session, "fails_deep", 0, NULL, 0, NULL), MH_SCRIPT,
               "is negative\n  69 | function fails() error(\"the pressure is negative\") end\nstack traceback:\n\t");
  EXPECT(strstr(mh_error(), "host.lua:72: in function 'fails_deep'") != NULL);
  expect_alike(h);
  EXPECT_ERROR(mh_call(session, "leaves", 0, NULL, 0, NULL), MH_SCRIPT, "the script called os.exit(5)");
  EXPECT_ERROR(mh_call(session, "reads_unknown", 0, NULL, 0, NULL), MH_SCRIPT,
               "no field 'uu' was registered; did you mean 'u'?");
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
  settings_that_are_not_read(h);
  errors_of_closed(h);
  session = open_session(h, NULL);
  errors_of_fields(h, session);
  errors_of_shapes(h, session);
  errors_of_memory(h, session);
  errors_of_calls(h, session);
  EXPECT(mh_close(session) == MH_OK);
}

/* Ranks call different functions, without and with a collective in them. */
static void ranks_part(const host* h) {
  mh_session* session = open_session(h, NULL);
  EXPECT_ERROR(
      mh_call(session, h->rank == 0 ? "nothing" : "fails", 0, NULL, 0, NULL), MH_USAGE,
      "session: ranks 0 and 1 make different calls\n  have  rank 0: mh_call('nothing'); rank 1: mh_call('fails'), "
      "which failed: ");
  expect_alike(h);
  EXPECT(mh_error_repeats() == (h->rank > 0));
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_RANK_LOST, "the session has ended before");
  EXPECT(mh_close(session) == MH_OK);
  session = open_session(h, NULL);
  EXPECT_ERROR(mh_call(session, h->rank == 0 ? "nothing" : "half", 0, NULL, 0, NULL), MH_USAGE, "mh_call('nothing')");
  expect_alike(h);
  EXPECT(mh_close(session) == MH_OK);
}

/* One rank is in a collective of the script's or of mh_field, and the others have come to the end of another call. With
   functions of the program's they would wait for the limit. */
static void ranks_wait_for_each_other(const host* h, int in_field) {
  padded p = make_padded(h, 13, 11);
  mh_session* session = open_session(h, NULL);
  double out[2];
  if (!in_field) EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT_ERROR(h->rank != 1 ? mh_call(session, "nothing", 0, NULL, 0, NULL)
               : in_field   ? mh_field(session, "u", &p.block)
                            : mh_call(session, "slow_sum", 0, NULL, 2, out),
               MH_USAGE, "session: all ranks wait for each other, in different calls\n  have  rank 0: ");
  EXPECT(strstr(mh_error(), "mh_call('nothing')") != NULL);
  expect_alike(h);
  EXPECT(mh_error_repeats() == (h->rank > 0));
  EXPECT_ERROR(mh_sync(session), MH_RANK_LOST, "the session has ended before");
  EXPECT(mh_close(session) == MH_OK);
  session = open_session(h, NULL); /* a later session knows nothing of it */
  EXPECT(mh_sync(session) == MH_OK && mh_close(session) == MH_OK);
  free(p.memory);
}

/* One rank gives wrong arguments, which are found before it comes to the others: they hear of them. */
static void one_rank_is_refused(const host* h) {
  mh_session* session = open_session(h, NULL);
  double number = 3, out = 0;
  EXPECT_ERROR(mh_call(session, "half", 1, h->rank == 1 ? NULL : &number, 1, &out), MH_USAGE,
               "mh_call('half'): no place for numbers");
  expect_alike(h);
  EXPECT(mh_error_repeats() == (h->rank > 0));
  EXPECT(mh_close(session) == MH_OK);
  session = open_session(h, NULL);
  if (h->rank == 1) {
    EXPECT_ERROR(mh_refuse(session, "mh_sync", "its clock is slow"), MH_USAGE, "mh_sync: its clock is slow");
  } else {
    EXPECT_ERROR(mh_sync(session), MH_USAGE, "mh_sync: its clock is slow\n  rank  1 of ");
  }
  expect_alike(h);
  EXPECT(mh_close(session) == MH_OK);
}

/* One rank fails while others wait for it: all return the same, and not by the limit, and the solver goes on. */
static void one_rank_fails(const host* h, const char* function, mh_status status, const char* text) {
  padded p = make_padded(h, 13, 11);
  mh_session *session = open_session(h, NULL), *other = open_session(h, NULL);
  double out = 0;
  int sum = 0;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &out) == MH_OK);
  EXPECT_ERROR(mh_call(session, function, 0, NULL, 1, &out), status, text);
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
}

/* A session that has trained once, with ranks that wait so many seconds for each other; NULL where a busy machine needs
   longer for that. */
static mh_session* trained(const host* h, const padded* p, double limit) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  double out = 0;
  int good;
  options.timeout_s = limit;
  good = mh_open(&options, &session) == MH_OK && mh_field(session, "u", &p->block) == MH_OK &&
         mh_call(session, "train", 0, NULL, 1, &out) == MH_OK;
  MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, h->comm);
  if (good) return session;
  if (session != NULL) mh_close(session);
  return NULL;
}

/* One rank waits in the solver's own MPI while others call: these return after the limit, it does as soon as it calls,
   and the solver goes on, with another session too. */
static void one_rank_is_silent(const host* h) {
  padded p = make_padded(h, 13, 11);
  mh_session *session = NULL, *other;
  char text[40];
  double out = 0, limit = 0.2;
  int sum = 0, timed_out;
  while (session == NULL && limit < 100) session = trained(h, &p, limit *= 5);
  EXPECT(session != NULL);
  snprintf(text, sizeof(text), "timed out after %g s", limit);
  if (h->rank == 1) MPI_Recv(&sum, 1, MPI_INT, 0, 5, h->comm, MPI_STATUS_IGNORE);
  EXPECT_ERROR(mh_call(session, "train", 0, NULL, 1, &out), MH_RANK_LOST, "");
  /* Whoever waited first says so. The others may know already that it ended. */
  timed_out = strstr(mh_error(), text) != NULL;
  EXPECT(h->rank == 1 || timed_out || strstr(mh_error(), "ended without joining") != NULL);
  if (h->rank == 0) MPI_Send(&sum, 1, MPI_INT, 1, 5, h->comm);
  EXPECT_ERROR(mh_call(session, "nothing", 0, NULL, 0, NULL), MH_RANK_LOST, "the session has ended before");
  EXPECT(mh_close(session) == MH_OK);
  MPI_Allreduce(MPI_IN_PLACE, &timed_out, 1, MPI_INT, MPI_MAX, h->comm);
  EXPECT(timed_out);
  MPI_Allreduce(&h->rank, &sum, 1, MPI_INT, MPI_SUM, h->comm);
  EXPECT(sum == h->ranks * (h->ranks - 1) / 2);
  other = open_session(h, NULL);
  EXPECT(mh_field(other, "u", &p.block) == MH_OK);
  EXPECT(mh_call(other, "train", 0, NULL, 1, &out) == MH_OK && out > 0);
  EXPECT(mh_close(other) == MH_OK);
  free(p.memory);
}

/* The caller has ended its MPI before the sessions, also one whose call is under way: a status and a text, and the
   sessions close. Ends MPI. */
void test_finalised(const host* h) {
  padded p = make_padded(h, 13, 11);
  mh_session *used = open_session(h, NULL), *unused = open_session(h, NULL), *busy = open_session(h, NULL);
  double out = 0;
  /* With functions of the program's, its own threads would be in MPI when it ends. */
  const int beside = options_for(h).transport == NULL;
  EXPECT(mh_field(used, "u", &p.block) == MH_OK && mh_field(busy, "u", &p.block) == MH_OK);
  EXPECT(mh_call(used, "train", 0, NULL, 1, &out) == MH_OK);
  if (beside) EXPECT(mh_call_begin(busy, "endless", 0, NULL) == MH_OK);
  MPI_Finalize();
  if (beside && (mh_call_end(busy, 0, NULL) != MH_RANK_LOST || mh_error()[0] == '\0')) {
    fprintf(stderr, "a call under way at MPI_Finalize: %s\n", mh_error());
    exit(1);
  }
  if (mh_call(used, "train", 0, NULL, 1, &out) != MH_RANK_LOST || strstr(mh_error(), "finalised") == NULL) {
    fprintf(stderr, "after MPI_Finalize: %s\n", mh_error());
    exit(1);
  }
  if (mh_field(used, "u", NULL) != MH_RANK_LOST || mh_close(used) != MH_OK || mh_close(unused) != MH_OK ||
      mh_close(busy) != MH_OK) {
    fprintf(stderr, "closing after MPI_Finalize: %s\n", mh_error());
    exit(1);
  }
  free(p.memory);
}

/* One rank goes on for longer than ten times the limit of a session after the others have called MPI_Finalize: the
   solver's own affair. Ends MPI. */
void test_patient(const host* h) {
  mh_session* session = open_session(h, NULL);
  const struct timespec pause = {7, 0};
  const double limit = 0.5; /* from now on: while it opens, a busy machine may need more */
  EXPECT(mh_call(session, "limit", 1, &limit, 0, NULL) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  if (h->rank == 0) nanosleep(&pause, NULL);
  MPI_Finalize();
}

/* Before MPI begins: a status, where MPI itself would end the program. */
void test_early(void) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  MPI_Comm comm = MPI_COMM_WORLD;
  mh_transport transport;
  const int handle = 0;
  options.script = script;
  options.mpi_comm = &comm;
  expect_early(mh_open(&options, &session), "MPI is not running\n  have  a call before MPI_Init");
  options.mpi_comm = NULL;
  options.mpi_fcomm = &handle;
  expect_early(mh_open(&options, &session), "MPI is not running\n  have  a call before MPI_Init");
  if (mh_mpi_transport(comm, &transport) == MPI_SUCCESS) exit(1);
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
  EXPECT_ERROR(mh_open(&options, &session), MH_UNSUPPORTED,
               "the program's MPI is another than the one that Moonhalo was built with");
  expect_alike(h);
  options.mpi_comm = NULL;
  options.mpi_fcomm = &handle;
  EXPECT_ERROR(mh_open(&options, &session), MH_UNSUPPORTED, "mh_mpi_transport of <moonhalo/moonhalo_mpi.h>");
}

void test_faults(const host* h) {
  errors_of_open_on_one_rank(h);
  one_rank_cannot_start(h);
  ranks_part(h);
  if (options_for(h).transport == NULL) {
    ranks_wait_for_each_other(h, 0);
    ranks_wait_for_each_other(h, 1);
  }
  one_rank_is_refused(h);
  one_rank_fails(h, "fails_on_rank_1", MH_SCRIPT, "rank 1 alone has failed");
  /* Others compute for 0.3 s of their own before they come. */
  one_rank_fails(h, "fails_before_others_come", MH_SCRIPT, "rank 1 alone has failed");
  one_rank_fails(h, "fails_on_rank_1", MH_SCRIPT, "\n  rank  1 of ");
  one_rank_fails(h, "runs_short_on_rank_1", MH_MEMORY, "memory");
  one_rank_is_silent(h);
}
