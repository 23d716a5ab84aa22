// SPDX-License-Identifier: Apache-2.0
#ifndef HOST_H
#define HOST_H

#include <moonhalo/moonhalo_c.h>
#include <moonhalo/moonhalo_mpi.h>

/* The ranks of a host, as a grid of rows x columns with uneven blocks. */
typedef struct {
  MPI_Comm comm;
  int rank, ranks;
  int rows, columns; /* of the grid of ranks */
  int row, column;   /* this rank's place */
} host;

extern const char* script;

void expect(int condition, const char* what, int line);
#define EXPECT(condition) expect((condition) != 0, #condition, __LINE__)
/* Status, and the beginning of the message without the script's path. */
void expect_error(mh_status status, mh_status expected, const char* text, int line);
#define EXPECT_ERROR(call, status, text) expect_error((call), (status), (text), __LINE__)

void divide(host* h, MPI_Comm comm);
/* Owned rows [*begin, *begin + result) of `total`, for block `place` of `blocks`: the first has twice its share. */
int share(int total, int blocks, int place, int* begin);
/* Options for a session of these ranks: over their communicator, or over functions made from it. */
mh_options options_for(const host* h);
mh_session* open_session(const host* h, const char* settings);
/* After the close of the session that was opened last. */
void free_transport(void);
double call1(mh_session* session, const char* function, double in);
/* mh_open with these options and such a transport. */
void errors_of_transports(mh_options options);

/* A field of rows x columns with ghosts of 2 and 1 rows, 1 and 3 columns, whose rows have 5 more elements between them.
 */
typedef struct {
  double* memory;
  int64_t count, pitch, height, width; /* height, width: owned */
  mh_block block;
} padded;
padded make_padded(const host* h, int rows, int columns);
double* at(const padded* p, int64_t i, int64_t j); /* owned element */
int64_t changed_outside(const padded* p);          /* elements of ghosts and padding that are not -7 */

/* The path of a file in this test's folder (tests/support/in_folder.sh), the same on all ranks. */
void own_path(char* path, size_t size, const char* name);

void test_fields(const host* h);
void test_errors(const host* h);
void test_faults(const host* h);
void test_foreign(const host* h);
void test_finalised(const host* h);
void test_early(void);
void test_patient(const host* h);
void test_sessions(const host* h);
void test_state(const host* h);
void test_beside(const host* h);
void test_ensemble(const host* h);
void test_trainers(const host* h);
void test_float(const host* h);
void test_budget(const host* h);

#endif
