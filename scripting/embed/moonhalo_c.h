// SPDX-License-Identifier: Apache-2.0
#ifndef MOONHALO_C_H
#define MOONHALO_C_H

/* Moonhalo inside a simulation code, from C99. A Lua script owns the model, the loss and the optimizer; the code owns
   its memory, its blocks and its MPI, and calls functions of the script:

       mh_session* session;
       mh_options options = MH_OPTIONS;
       options.script = "surrogate.lua";
       options.mpi_comm = &comm;                              // an MPI_Comm, duplicated; leave it out for one rank
       if (mh_open(&options, &session) != MH_OK) puts(mh_error());
       mh_field(session, "u", &block);                        // once: the script sees mh.host.fields.u, in place
       mh_call(session, "train", 1, &dt, 1, &loss);           // function train(dt) ... return loss end

   No function ends the process, throws, or prints; the script, warnings of its operators and of settings that it does
   not read do. Each returns a
   status, and mh_error() says more. Those marked collective are called by all ranks of the session in one order, and
   return the same status with the same message on all of them. A session is used by the thread that opened it. Several
   may be open beside one another.

   Each runs with the default floating-point environment, also in threads that work for it: what the caller has set
   (traps, rounding, flushing of subnormal numbers) changes no number and is given back at the end, as are raised flags.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MH_VERSION 100 /* 10000 major + 100 minor + patch */
#define MH_MAX_DIMS 8

typedef enum {
  MH_OK = 0,
  MH_SCRIPT = 1,      /* the script raised an error */
  MH_USAGE = 2,       /* what was asked for cannot be: a wrong argument, a missing function or file */
  MH_RANK_LOST = 3,   /* a rank was silent past the time limit, or the session has ended before */
  MH_MEMORY = 4,      /* a rank is out of memory */
  MH_UNSUPPORTED = 5, /* this build cannot do it */
  MH_INTERNAL = 6     /* an error of Moonhalo's own */
} mh_status;

typedef enum { MH_FLOAT32, MH_FLOAT64, MH_INT32, MH_INT64, MH_COMPLEX64, MH_COMPLEX128 } mh_dtype;

/* Which dim of a block is fastest in memory. MH_FIRST_FASTEST is Fortran's order: the script sees the dims reversed,
   the memory stays as it is. */
typedef enum { MH_LAST_FASTEST, MH_FIRST_FASTEST } mh_order;

typedef struct mh_session mh_session;

/* Messages by functions of the caller's: any MPI, also one that Moonhalo was not built with (moonhalo_mpi.h fills this
   in), or none. Each returns 0 for success. Messages of one pair of ranks and one tag (0 to 32767) arrive in the order
   of sending, at most 1 GiB each. Serves one session, and stays the caller's until mh_close. */
typedef struct {
  size_t size; /* sizeof(mh_transport) */
  void* context;
  int (*rank)(void* context);
  int (*ranks)(void* context);
  /* Begin to send, and to receive at most, so many bytes; 0 too. *request is theirs to fill, with what fits. */
  int (*isend)(void* context, const void* data, size_t bytes, int peer, int tag, void** request);
  int (*irecv)(void* context, void* data, size_t bytes, int peer, int tag, void** request);
  /* *done becomes 1 when the memory is no longer in use; the request is not used after that. */
  int (*test)(void* context, void** request, int* done);
  /* Withdraws a receive, and returns when its memory is no longer in use. */
  int (*cancel)(void* context, void** request);
  int any_thread; /* 1: other threads may talk meanwhile (MPI_THREAD_MULTIPLE), which mh_call_begin needs */
} mh_transport;

typedef struct {
  size_t size;                   /* sizeof(mh_options) */
  const char* script;            /* path of the Lua file, which is run once by mh_open */
  const void* mpi_comm;          /* address of an MPI_Comm, which stays the caller's; or */
  const int* mpi_fcomm;          /* address of a Fortran handle (MPI_Fint) */
  const char* settings;          /* "lr=1e-3 width=16", for mh.config in the script; may be NULL */
  double timeout_s;              /* longest silence of a rank in seconds; 0: MOONHALO_TIMEOUT_S, else 600 */
  const mh_transport* transport; /* in place of a communicator; none of the three: one rank */
  double call_budget_s;          /* longest time that mh_call gives a function of the script; 0: any */
  /* 1: before and after each function of the script, numbers that go in and out and what the ranks own of each field
     are looked through; NaN or infinity is an error on all ranks that names the field, its index and the call. Before:
     MH_USAGE, and the function does not run; after: MH_SCRIPT. It costs a pass over the fields and a message. */
  int check_finite;
} mh_options;
#define MH_OPTIONS \
  { sizeof(mh_options), NULL, NULL, NULL, NULL, 0, NULL, 0, 0 }

typedef struct {
  size_t size; /* sizeof(mh_block) */
  void* data;  /* the first element, ghosts included; the caller's until the field is unregistered */
  int dtype;   /* mh_dtype */
  int ndim;
  int order;                       /* mh_order: what 0 strides mean, and in which order the script sees the dims */
  int64_t extent[MH_MAX_DIMS];     /* ghosts included */
  int64_t stride[MH_MAX_DIMS];     /* in elements; all 0: packed */
  int64_t ghost_low[MH_MAX_DIMS];  /* rows before the owned ones, along each dim */
  int64_t ghost_high[MH_MAX_DIMS]; /* and after them */
  int64_t begin[MH_MAX_DIMS];      /* index in the whole field of the first owned row */
  int64_t global[MH_MAX_DIMS];     /* extents of the whole field; all 0: what the boxes of all ranks cover */
  /* 1: whenever mh_call is called, the ghosts hold the rows of the neighbours, corners too. Convolutions and their like
     then read them there, and send nothing, until the script writes a tensor in place. On all ranks, none empty. */
  int ghosts_filled;
} mh_block;

/* Runs the script. Collective over the communicator. `session` is NULL where it fails. */
mh_status mh_open(const mh_options* options, mh_session** session);
/* Ends a session, also one that has failed; NULL is none. Collective. Before MPI_Finalize. */
mh_status mh_close(mh_session* session);

/* Shows the owned part of a block to the script as mh.host.fields[name], a ShardTensor over the caller's memory:
   nothing is copied, now or later. The blocks of all ranks, one each, must form a grid. Again under the same name when
   memory moved; with NULL for a block the name is unregistered, and what the script still holds of it must not be used.
   Fields may be registered before or after the functions that use them. Collective. */
mh_status mh_field(mh_session* session, const char* name, const mh_block* block);

/* A field in boxes, any number of them on each rank and in no grid, as codes with adaptive meshes hold it: mh_call
   copies them into mh.host.fields[name], cut into even slabs, by one exchange that is planned here, and back when the
   function has written the field. Each box has its own memory, begin and ghosts, which are left alone. Elements that no
   box owns are 0, and mh.host.masks[name], a tensor of bool cut as the field, is false there. Collective, as are its
   later copies. */
mh_status mh_boxes(mh_session* session, const char* name, int count, const mh_block* boxes);

/* Calls the global function of the script with `n` numbers, and takes `m` numbers (or tensors of one element) of what
   it returns. `in` may be NULL where n is 0, `out` where m is 0. An error that is alike on all ranks leaves the session
   as it was; after any other it is of no further use, and only mh_close works. Lua code that runs longer than
   call_budget_s is ended with MH_SCRIPT, and with MH_RANK_LOST where the other ranks have given up waiting for it; no
   pcall of the script keeps that. Collective. */
mh_status mh_call(mh_session* session, const char* function, int n, const double* in, int m, double* out);
/* The same beside the solver: begin returns at once, and a thread of the session's makes the call; end waits for it and
   takes the numbers. Meanwhile mh.host.fields are copies of what they were, so the solver goes on in its memory, and
   what the function writes to them is lost: let a later mh_call write results. Until the end all that the session can
   do besides is mh_close. MH_UNSUPPORTED unless MPI was initialised with MPI_THREAD_MULTIPLE. Collective, both. */
mh_status mh_call_begin(mh_session* session, const char* function, int n, const double* in);
mh_status mh_call_end(mh_session* session, int m, double* out);

/* Saves and restores what the script names in mh.host.state, as mh.checkpoint does: any number of ranks may load what
   any other saved. Collective. */
mh_status mh_save(mh_session* session, const char* path);
mh_status mh_load(mh_session* session, const char* path);
/* Returns when all ranks have come here. Collective. */
mh_status mh_sync(mh_session* session);
/* Writes what this rank knows into text[size]: version, ranks, fields with their cuts and addresses, and what was sent.
   MH_USAGE when it does not fit. */
mh_status mh_report(mh_session* session, char* text, size_t size);

/* For what lies between a program and these functions, such as the Fortran module. In place of `call`, which this rank
   cannot make because of `problem`: all ranks get that as the error of theirs. Collective, as the call. */
mh_status mh_refuse(mh_session* session, const char* call, const char* problem);

/* What went wrong in this thread's last call, "" after one that went well; never NULL. Valid until the next call. */
const char* mh_error(void);
/* 1 where a rank before this one in the session has the same error, and could tell of it; else 0. */
int mh_error_repeats(void);
/* MH_VERSION of the library. */
int mh_version(void);

#ifdef __cplusplus
}
#endif
#endif
