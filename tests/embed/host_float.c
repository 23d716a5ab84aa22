/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the host has made of its floating-point unit: no number of a script depends on it, none stops the host, and
   it is given back (X15). Threads of OpenMP, which LibTorch has in common with the host, included. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "host.h"

enum { kTraps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW, kResults = 6, kMostThreads = 64 };

/* What a thread has set, and its flags. */
typedef struct {
  int traps, rounding, flags;
  unsigned flushing; /* bits for results and for operands */
} environment;

static unsigned flushing_now(void) {
#ifdef __x86_64__
  return _mm_getcsr() & 0x8040u;
#else
  return 0;
#endif
}

static environment environment_now(void) {
  environment now;
  now.traps = fegetexcept();
  now.rounding = fegetround();
  now.flags = fetestexcept(FE_ALL_EXCEPT);
  now.flushing = flushing_now();
  return now;
}

/* FE_UNDERFLOW stays raised, to be found again. */
static void set_environment(int traps, int rounding, int flush) {
  feclearexcept(FE_ALL_EXCEPT);
  feraiseexcept(FE_UNDERFLOW);
  feclearexcept(FE_INEXACT);
  fesetround(rounding);
  fedisableexcept(FE_ALL_EXCEPT);
  feenableexcept(traps);
#ifdef __x86_64__
  _mm_setcsr((_mm_getcsr() & ~0x8040u) | (flush ? 0x8040u : 0));
#else
  (void)flush;
#endif
}

static int same(environment a, environment b) {
  return a.traps == b.traps && a.rounding == b.rounding && a.flags == b.flags && a.flushing == b.flushing;
}

/* On the threads that a region of OpenMP has: those of LibTorch too. */
static int environments_of_threads(environment* found) {
  int threads = 1;
  found[0] = environment_now();
#ifdef _OPENMP
#pragma omp parallel
  {
#pragma omp critical
    {
      const int place = omp_get_thread_num();
      if (place < kMostThreads) found[place] = environment_now();
      if (place >= threads) threads = place + 1;
    }
  }
#endif
  return threads < kMostThreads ? threads : kMostThreads;
}

static void set_environment_of_threads(int traps, int rounding, int flush) {
#ifdef _OPENMP
#pragma omp parallel
#endif
  set_environment(traps, rounding, flush);
}

/* Numbers that no rounding changes. */
static void fill_exactly(const padded* p) {
  int64_t i, j;
  for (i = 0; i < p->height; ++i) {
    for (j = 0; j < p->width; ++j)
      *at(p, i, j) = (double)(p->block.begin[0] + i) / 64 + (double)((p->block.begin[1] + j) % 7) / 8;
  }
}

/* LibTorch may have changed how many threads there are. */
static void expect_unchanged(const environment* before, int threads, int check) {
  environment after[kMostThreads];
  const int now = environments_of_threads(after);
  int i;
  for (i = 0; i < threads && i < now && check; ++i) EXPECT(same(before[i], after[i]));
}

/* Every function of the interface, errors too; between them the environment is the same. */
static void call_all(const host* h, double* results, int check) {
  padded p = make_padded(h, 13, 11);
  environment before[kMostThreads];
  const int threads = environments_of_threads(before);
  mh_session* session = open_session(h, NULL);
  char report[2000];
  double one = 1;
  fill_exactly(&p);
#define UNCHANGED expect_unchanged(before, threads, check)
  UNCHANGED;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  UNCHANGED;
  EXPECT(mh_call(session, "not_finite", 0, NULL, 3, results) == MH_OK);
  UNCHANGED;
  EXPECT(mh_call(session, "train", 0, NULL, 1, results + 3) == MH_OK);
  UNCHANGED;
  EXPECT(mh_call(session, "thirds", 1, &one, 2, results + 4) == MH_OK);
  UNCHANGED;
  EXPECT_ERROR(mh_call(session, "fails", 0, NULL, 0, NULL), MH_SCRIPT, "the pressure is negative");
  UNCHANGED;
  EXPECT_ERROR(mh_call(session, "leaves", 0, NULL, 0, NULL), MH_SCRIPT, "os.exit");
  UNCHANGED;
  EXPECT_ERROR(mh_field(session, "", &p.block), MH_USAGE, "no name");
  EXPECT(mh_report(session, report, sizeof(report)) == MH_OK);
  EXPECT(mh_sync(session) == MH_OK);
  UNCHANGED;
  EXPECT(mh_close(session) == MH_OK);
  UNCHANGED;
  free(p.memory);
}

/* Functions of an mh_transport are the host's: they run as it does. */
static mh_transport inner;
static environment of_the_host;
static int in_the_hosts_environment = 0, elsewhere = 0;
static void note_environment(void) {
  const environment now = environment_now();
  const int alike =
      now.traps == of_the_host.traps && now.rounding == of_the_host.rounding && now.flushing == of_the_host.flushing;
  if (alike) ++in_the_hosts_environment;
  if (!alike) ++elsewhere;
}
static int noted_isend(void* context, const void* data, size_t bytes, int peer, int tag, void** request) {
  note_environment();
  return inner.isend(context, data, bytes, peer, tag, request);
}
static int noted_test(void* context, void** request, int* done) {
  note_environment();
  return inner.test(context, request, done);
}

static void callbacks_see_the_hosts(const host* h) {
  mh_transport noted;
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  padded p = make_padded(h, 13, 11);
  double out = 0;
  EXPECT(mh_mpi_transport(h->comm, &inner) == MPI_SUCCESS);
  noted = inner;
  noted.isend = noted_isend;
  noted.test = noted_test;
  options.script = script;
  options.transport = &noted;
  set_environment(kTraps, FE_UPWARD, 0);
  of_the_host = environment_now();
  EXPECT(mh_open(&options, &session) == MH_OK && mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &out) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  set_environment(0, FE_TONEAREST, 0);
  EXPECT(elsewhere == 0 && (in_the_hosts_environment > 0 || h->ranks == 1));
  EXPECT(mh_mpi_transport_free(&inner) == MPI_SUCCESS);
  free(p.memory);
}

void test_float(const host* h) {
  static const struct {
    int traps, rounding, flush;
  } cases[] = {{kTraps, FE_TONEAREST, 0},
               {0, FE_UPWARD, 0},
               {0, FE_TOWARDZERO, 0},
               {0, FE_TONEAREST, 1},
               {kTraps, FE_DOWNWARD, 1}};
  double plain[kResults], results[kResults];
  size_t i;
  /* Threads that are made while traps are on, before LibTorch has made any. */
  set_environment_of_threads(kTraps, FE_TONEAREST, 0);
  call_all(h, results, 1);
  set_environment_of_threads(0, FE_TONEAREST, 0);
  call_all(h, plain, 0);
  EXPECT(memcmp(plain, results, sizeof(plain)) == 0);
  EXPECT(plain[0] > 0 && plain[1] > 0 && plain[2] > 0 && plain[5] > 0);
  for (i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    set_environment_of_threads(cases[i].traps, cases[i].rounding, cases[i].flush);
    call_all(h, results, 1);
    set_environment_of_threads(0, FE_TONEAREST, 0);
    EXPECT(memcmp(plain, results, sizeof(plain)) == 0);
  }
  callbacks_see_the_hosts(h);
}
