/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C with an MPI of its own (X15):  mpirun -n N host CASE SCRIPT [ARGUMENT].  Compiled as C99 and as C++, and
   with an MPI that Moonhalo was not built with. transport_CASE: Moonhalo has no communicator, but functions. */
#include "host.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char* script;
static int over_transport = 0;
static mh_transport transports[400]; /* for one session each */
static int transport_count = 0;

void expect(int condition, const char* what, int line) {
  int rank;
  if (condition) return;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fprintf(stderr, "rank %d, line %d: not so: %s\n  mh_error: %s\n", rank, line, what, mh_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

void expect_error(mh_status status, mh_status wanted, const char* text, int line) {
  char what[600];
  snprintf(what, sizeof(what), "status %d (expected %d), message with \"%s\"", (int)status, (int)wanted, text);
  expect(status == wanted && strstr(mh_error(), text) != NULL, what, line);
}

void divide(host* h, MPI_Comm comm) {
  h->comm = comm;
  MPI_Comm_rank(comm, &h->rank);
  MPI_Comm_size(comm, &h->ranks);
  h->columns = h->ranks % 2 == 0 ? 2 : 1;
  h->rows = h->ranks / h->columns;
  h->row = h->rank / h->columns;
  h->column = h->rank % h->columns;
}

int share(int total, int blocks, int place, int* begin) {
  const int shares = blocks + 1;
  *begin = place == 0 ? 0 : (place + 1) * total / shares;
  return (place + 2) * total / shares - *begin;
}

mh_options options_for(const host* h) {
  mh_options options = MH_OPTIONS;
  options.script = script;
  if (over_transport) {
    mh_transport* transport = &transports[transport_count++];
    EXPECT(transport_count <= 400 && mh_mpi_transport(h->comm, transport) == MPI_SUCCESS);
    options.transport = transport;
  } else {
    options.mpi_comm = &h->comm;
  }
  return options;
}

mh_session* open_session(const host* h, const char* settings) {
  mh_session* session = NULL;
  mh_options options = options_for(h);
  options.settings = settings;
  options.timeout_s = 300; /* for hangs */
  EXPECT(mh_open(&options, &session) == MH_OK);
  EXPECT(session != NULL && strcmp(mh_error(), "") == 0);
  return session;
}

void free_transport(void) {
  if (over_transport) EXPECT(mh_mpi_transport_free(&transports[--transport_count]) == MPI_SUCCESS);
}

double call1(mh_session* session, const char* function, double in) {
  double out = 0;
  EXPECT(mh_call(session, function, 1, &in, 1, &out) == MH_OK);
  return out;
}

padded make_padded(const host* h, int rows, int columns) {
  padded p;
  int begin_row, begin_column;
  int64_t i;
  p.height = share(rows, h->rows, h->row, &begin_row);
  p.width = share(columns, h->columns, h->column, &begin_column);
  p.pitch = p.width + 4 + 5;
  p.count = (p.height + 3) * p.pitch;
  p.memory = (double*)malloc(sizeof(double) * (size_t)p.count);
  for (i = 0; i < p.count; ++i) p.memory[i] = -7;
  memset(&p.block, 0, sizeof(p.block));
  p.block.size = sizeof(p.block);
  p.block.data = p.memory;
  p.block.dtype = MH_FLOAT64;
  p.block.ndim = 2;
  p.block.extent[0] = p.height + 3;
  p.block.extent[1] = p.width + 4;
  p.block.stride[0] = p.pitch;
  p.block.stride[1] = 1;
  p.block.ghost_low[0] = 2;
  p.block.ghost_high[0] = 1;
  p.block.ghost_low[1] = 1;
  p.block.ghost_high[1] = 3;
  p.block.begin[0] = begin_row;
  p.block.begin[1] = begin_column;
  for (i = 0; i < p.height; ++i) {
    int64_t j;
    for (j = 0; j < p.width; ++j)
      *at(&p, i, j) = 0.01 * (double)(begin_row + i) + 0.1 * (double)((begin_column + j) % 7);
  }
  return p;
}

double* at(const padded* p, int64_t i, int64_t j) { return p->memory + (i + 2) * p->pitch + j + 1; }

int64_t changed_outside(const padded* p) {
  int64_t changed = 0, k;
  for (k = 0; k < p->count; ++k) {
    const int64_t i = k / p->pitch - 2, j = k % p->pitch - 1;
    if (i >= 0 && i < p->height && j >= 0 && j < p->width) continue;
    changed += p->memory[k] != -7;
  }
  return changed;
}

/* Sessions lose no memory, but those that failed on some ranks: others may still write what they were promised. MPI
   does, so its start does not count, and the check comes before its end. */
void own_path(char* path, size_t size, const char* name) {
  const char* folder = getenv("TMPDIR");
  if (folder == NULL || snprintf(path, size, "%s/%s", folder, name) >= (int)size) {
    fprintf(stderr, "this case writes files: run it by tests/support/in_folder.sh, as CTest does\n");
    exit(1);
  }
}

static void start_mpi(int* argc, char*** argv, int level) {
  int provided;
#ifdef __SANITIZE_ADDRESS__
  __lsan_disable();
#endif
  MPI_Init_thread(argc, argv, level, &provided);
#ifdef __SANITIZE_ADDRESS__
  __lsan_enable();
#endif
}

static void expect_no_leak(void) {
#ifdef __SANITIZE_ADDRESS__
  EXPECT(__lsan_do_recoverable_leak_check() == 0);
  printf("host: nothing leaks\n");
#endif
}

int main(int argc, char** argv) {
  const char* name = argc > 2 ? argv[1] : "";
  const char* argument = argc > 3 ? argv[3] : "";
  int level = MPI_THREAD_MULTIPLE;
  host h;
  if (strncmp(name, "transport_", 10) == 0) {
    over_transport = 1;
    name += 10;
  }
  if ((strcmp(name, "fields") == 0 || strcmp(name, "beside") == 0) && strcmp(argument, "") != 0)
    level = atoi(argument); /* 0: MPI_THREAD_SINGLE ... */
  script = argc > 2 ? argv[2] : "";
  if (strcmp(name, "early") == 0) {
    test_early();
    name = "sessions"; /* and then it goes on */
  }
  start_mpi(&argc, &argv, level);
  divide(&h, MPI_COMM_WORLD);
  if (strcmp(name, "fields") == 0) {
    test_fields(&h);
  } else if (strcmp(name, "errors") == 0) {
    test_errors(&h);
  } else if (strcmp(name, "faults") == 0) {
    test_faults(&h);
  } else if (strcmp(name, "foreign") == 0) {
    test_foreign(&h);
  } else if (strcmp(name, "finalised") == 0) {
    test_finalised(&h);
    if (h.rank == 0) printf("host: it outlives its MPI\n");
    return 0;
  } else if (strcmp(name, "patient") == 0) {
    test_patient(&h);
    return 0;
  } else if (strcmp(name, "sessions") == 0) {
    test_sessions(&h);
  } else if (strcmp(name, "state") == 0) {
    test_state(&h);
  } else if (strcmp(name, "beside") == 0) {
    test_beside(&h);
  } else if (strcmp(name, "ensemble") == 0) {
    test_ensemble(&h);
  } else if (strcmp(name, "trainers") == 0) {
    test_trainers(&h);
  } else if (strcmp(name, "float") == 0) {
    test_float(&h);
  } else if (strcmp(name, "budget") == 0) {
    test_budget(&h);
  } else {
    EXPECT(!"the case is known");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  while (transport_count > 0) free_transport();
  if (strstr("faults beside trainers", name) == NULL) expect_no_leak();
  MPI_Finalize();
  if (h.rank == 0) printf("host: %s is right on %d ranks\n", name, h.ranks);
  return 0;
}
