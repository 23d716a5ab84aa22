// SPDX-License-Identifier: Apache-2.0
#ifndef MOONHALO_C_H
#define MOONHALO_C_H

/* The C99 interface for simulation codes. A Lua script defines the model, the loss and the optimizer. The code owns its
   memory, its blocks and its MPI, and calls functions of the script:

       mh_session* session;
       mh_options options = MH_OPTIONS;
       options.script = "surrogate.lua";
       options.mpi_comm = &comm;                              // an MPI_Comm, duplicated; omit it for one rank
       if (mh_open(&options, &session) != MH_OK) puts(mh_error());
       mh_field(session, "u", &block);                        // once: mh.host.fields.u in the script, not copied
       mh_call(session, "train", 1, &dt, 1, &loss);           // function train(dt) ... return loss end

   No function exits the process, throws or prints; only the script prints, and warnings of its operators and of
   settings that it does not read. Functions return a status, and mh_error() returns the message. All ranks of a session
   must call the collective functions in the same order; these return the same status and message on all ranks. Only the
   thread that opened a session may use it. Several sessions may be open at the same time.

   Functions run in the default floating-point environment, also in worker threads: the caller's traps, rounding mode
   and flushing of subnormal numbers do not affect results. The caller's environment and raised flags are restored on
   return.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MH_VERSION 100 /* 10000 major + 100 minor + patch */
#define MH_MAX_DIMS 8  /* the most dims of a block */

/* What a function returns; mh_error() has the message. */
typedef enum {
  MH_OK = 0,          /* success */
  MH_SCRIPT = 1,      /* the script raised an error */
  MH_USAGE = 2,       /* invalid request: a wrong argument, a missing function or file */
  MH_RANK_LOST = 3,   /* a rank did not respond within the timeout, or the session has failed before */
  MH_MEMORY = 4,      /* a rank is out of memory */
  MH_UNSUPPORTED = 5, /* not supported by this build */
  MH_INTERNAL = 6     /* an error in Moonhalo itself */
} mh_status;

/* The types of the elements of a block. */
typedef enum { MH_FLOAT32, MH_FLOAT64, MH_INT32, MH_INT64, MH_COMPLEX64, MH_COMPLEX128 } mh_dtype;

/* The dim of a block that is fastest in memory. MH_FIRST_FASTEST is Fortran's order: the script gets the dims reversed,
   the memory is unchanged. */
typedef enum { MH_LAST_FASTEST, MH_FIRST_FASTEST } mh_order;

/* A session, which mh_open makes and mh_close frees. */
typedef struct mh_session mh_session;

/* Message-passing callbacks supplied by the caller, in place of an MPI communicator: any MPI, also one that Moonhalo
   was not built with (moonhalo_mpi.h fills this in), or another library. Each callback returns 0 for success. Messages
   between a pair of ranks with the same tag (0 to 32767) must arrive in the order sent; each has at most 1 GiB. A
   transport serves one mh_open, also one that fails, and must exist until mh_close. */
typedef struct {
  size_t size;   /* sizeof(mh_transport) */
  void* context; /* the first argument of each callback */
  /* Return the number of this rank, from 0, and the number of ranks. */
  int (*rank)(void* context);
  int (*ranks)(void* context);
  /* Start to send `bytes` bytes, or to receive at most `bytes` bytes (0 is allowed). Store any handle in *request. */
  int (*isend)(void* context, const void* data, size_t bytes, int peer, int tag, void** request);
  int (*irecv)(void* context, void* data, size_t bytes, int peer, int tag, void** request);
  /* Set *done to 1 when the memory is no longer in use. The request is not used afterwards. What has arrived from a
     peer is received, even if the peer has been lost since. */
  int (*test)(void* context, void** request, int* done);
  /* Cancels a receive. Returns when its memory is no longer in use. */
  int (*cancel)(void* context, void** request);
  int any_thread; /* 1: other threads may call MPI at the same time (MPI_THREAD_MULTIPLE); needed by mh_call_begin */
} mh_transport;

/* Settings of mh_open. Begin with MH_OPTIONS, which has the defaults. */
typedef struct {
  size_t size;          /* sizeof(mh_options) */
  const char* script;   /* path of the Lua file; mh_open runs it once */
  const void* mpi_comm; /* address of an MPI_Comm, which is duplicated; or */
  const int* mpi_fcomm; /* address of a Fortran handle (MPI_Fint) */
  const char* settings; /* "lr=1e-3 model=\"run 3/unet.pt2\"", read by mh.config in the script; may be NULL */
  double timeout_s;     /* timeout for a rank that does not respond, in seconds; 0: MOONHALO_TIMEOUT_S, else 600 */
  const mh_transport* transport; /* in place of a communicator; if all three are NULL: one rank */
  double call_budget_s;          /* longest time that a script function may run in mh_call, in seconds; 0: no limit */
  /* 1: checks for NaN and infinity before and after each function of the script: in the numbers passed and returned,
     and in the owned rows of each field. They are an error on all ranks that names the field, its index and the call.
     Before: MH_USAGE, and the function does not run; after: MH_SCRIPT. Costs a pass over the fields and a message. */
  int check_finite;
} mh_options;
#define MH_OPTIONS \
  { sizeof(mh_options), NULL, NULL, NULL, NULL, 0, NULL, 0, 0 }

/* The block of a field in the memory of this rank. Set all members that are not used to 0. */
typedef struct {
  size_t size; /* sizeof(mh_block) */
  void* data;  /* address of the first element, ghosts included; must be valid until the field is unregistered */
  int dtype;   /* mh_dtype */
  int ndim;    /* number of dims, at most MH_MAX_DIMS */
  int order;   /* mh_order: strides if all are 0, and the order of the dims in the script */
  int64_t extent[MH_MAX_DIMS];     /* ghosts included */
  int64_t stride[MH_MAX_DIMS];     /* in elements; all 0: packed */
  int64_t ghost_low[MH_MAX_DIMS];  /* ghost rows before the owned ones, along each dim */
  int64_t ghost_high[MH_MAX_DIMS]; /* ghost rows after the owned ones */
  int64_t begin[MH_MAX_DIMS];      /* index of the first owned row in the whole field */
  int64_t global[MH_MAX_DIMS];     /* extents of the whole field; all 0: derived from the boxes of all ranks */
  /* 1: in every mh_call the ghosts hold the neighbours' rows, corners included. Convolutions and similar operators then
     read the ghosts and send nothing, until the script writes a tensor in place. On all ranks, and no block may be
     empty. */
  int ghosts_filled;
} mh_block;

/* Starts a session and runs the script. Collective over the communicator. Sets *session to NULL on failure. */
mh_status mh_open(const mh_options* options, mh_session** session);
/* Ends a session, also after an error. Does nothing for NULL. Call it before MPI_Finalize. Collective. */
mh_status mh_close(mh_session* session);

/* Registers the owned part of a block as mh.host.fields[name], a ShardTensor over the caller's memory. Nothing is ever
   copied. The blocks of all ranks, one each, must form a grid. Register the name again if the memory moves. A NULL
   block unregisters the name; the script must not use tensors of that field afterwards. Fields may be registered before
   or after the functions that use them. Collective. */
mh_status mh_field(mh_session* session, const char* name, const mh_block* block);

/* Registers a field that consists of boxes: any number per rank, in any arrangement, as in codes with adaptive meshes.
   mh_call copies the boxes to mh.host.fields[name], a ShardTensor of balanced slabs, and back if the function has
   written the field. This is one exchange, planned here. Each box has its own memory, begin and ghosts; ghosts are not
   changed. Elements that no box owns are 0, and mh.host.masks[name], a bool tensor sharded as the field, is false
   there. Collective, and so are the later copies. */
mh_status mh_boxes(mh_session* session, const char* name, int count, const mh_block* boxes);

/* Calls a global function of the script with `n` numbers and stores `m` numbers (or one-element tensors) that it
   returns in `out`. `in` may be NULL if n is 0, `out` if m is 0. After an error that is equal on all ranks, the session
   is unchanged. After any other error, only mh_close may be called. Lua code that runs longer than call_budget_s is
   stopped with MH_SCRIPT, or with MH_RANK_LOST if the other ranks have timed out; pcall cannot catch it. Collective. */
mh_status mh_call(mh_session* session, const char* function, int n, const double* in, int m, double* out);
/* Do the same concurrently with the solver. mh_call_begin returns immediately and a thread of the session makes the
   call. mh_call_end waits for it and stores the numbers. During the call mh.host.fields are copies, so the solver may
   write its memory; what the function writes to them is lost, so write results in a later mh_call. Between begin and
   end only mh_close may be called. Return MH_UNSUPPORTED unless MPI was initialised with MPI_THREAD_MULTIPLE. Both are
   collective. */
mh_status mh_call_begin(mh_session* session, const char* function, int n, const double* in);
mh_status mh_call_end(mh_session* session, int m, double* out);

/* Save and restore the entries of mh.host.state of the script, as mh.checkpoint does. The number of ranks may differ
   between save and load. Collective. */
mh_status mh_save(mh_session* session, const char* path);
mh_status mh_load(mh_session* session, const char* path);
/* Waits until all ranks have called it. Collective. */
mh_status mh_sync(mh_session* session);
/* Writes a report of this rank into text[size]: version, ranks, fields with their sharding and addresses, and traffic.
   Returns MH_USAGE if it does not fit. Not collective. */
mh_status mh_report(mh_session* session, char* text, size_t size);

/* Begins a range that profiles of the sessions of this thread show under `name`, and ends the last one that was begun.
   Ranges may be nested. While nothing records they do next to nothing. Return MH_USAGE for NULL, and for an end without
   a begin. Not collective. */
mh_status mh_range_begin(const char* name);
mh_status mh_range_end(void);

/* For wrappers such as the Fortran module. A rank that cannot make the call `call` because of `problem` calls this
   instead; all ranks then get that problem as their error. Collective, together with the call. */
mh_status mh_refuse(mh_session* session, const char* call, const char* problem);

/* Returns the error message of this thread's last call, "" after success; never NULL. Valid until the next call.
   Not collective. */
const char* mh_error(void);
/* Returns 1 if a lower rank of the session reports the same error, so this rank need not print it; else 0. Not
   collective. */
int mh_error_repeats(void);
/* Returns the MH_VERSION of the library. Not collective. */
int mh_version(void);

#ifdef __cplusplus
}
#endif
#endif
