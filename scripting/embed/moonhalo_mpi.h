// SPDX-License-Identifier: Apache-2.0
#ifndef MOONHALO_MPI_H
#define MOONHALO_MPI_H

/* An mh_transport for the MPI of the program that includes this header. It need not be the MPI that Moonhalo was built
   with, and Moonhalo may be built without MPI:

       mh_transport transport;
       if (mh_mpi_transport(comm, &transport) != MPI_SUCCESS) ...
       options.transport = &transport;
       mh_open(&options, &session); ... mh_close(session);
       mh_mpi_transport_free(&transport);

   Each mh_open needs its own transport, also after one that failed: messages of that may still be on their way. */

#include <moonhalo/moonhalo_c.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in a transport over a duplicate of `comm`. Collective over `comm`. Returns MPI_SUCCESS or an MPI error code. */
static inline int mh_mpi_transport(MPI_Comm comm, mh_transport* transport);

/* Frees the duplicate, once the session that used the transport is closed. Collective over the communicator. Returns
   MPI_SUCCESS or an MPI error code. */
static inline int mh_mpi_transport_free(mh_transport* transport);

typedef char mh_mpi_request_fits[sizeof(MPI_Request) <= sizeof(void*) ? 1 : -1];

static int mh_mpi_rank(void* context) {
  int rank = -1;
  MPI_Comm_rank(*(MPI_Comm*)context, &rank);
  return rank;
}

static int mh_mpi_ranks(void* context) {
  int ranks = -1;
  MPI_Comm_size(*(MPI_Comm*)context, &ranks);
  return ranks;
}

static int mh_mpi_ended(void) {
  int began = 0, ended = 0;
  MPI_Initialized(&began);
  MPI_Finalized(&ended);
  return !began || ended;
}

static int mh_mpi_isend(void* context, const void* data, size_t bytes, int peer, int tag, void** request) {
  MPI_Request mine;
  int status;
  if (mh_mpi_ended()) return MPI_ERR_COMM;
  status = MPI_Isend((void*)data, (int)bytes, MPI_BYTE, peer, tag, *(MPI_Comm*)context, &mine);
  if (status == MPI_SUCCESS) memcpy(request, &mine, sizeof(mine));
  return status;
}

static int mh_mpi_irecv(void* context, void* data, size_t bytes, int peer, int tag, void** request) {
  MPI_Request mine;
  int status;
  if (mh_mpi_ended()) return MPI_ERR_COMM;
  status = MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, tag, *(MPI_Comm*)context, &mine);
  if (status == MPI_SUCCESS) memcpy(request, &mine, sizeof(mine));
  return status;
}

static int mh_mpi_test(void* context, void** request, int* done) {
  MPI_Request mine;
  int status;
  (void)context;
  if (mh_mpi_ended()) return MPI_ERR_COMM;
  memcpy(&mine, request, sizeof(mine));
  status = MPI_Test(&mine, done, MPI_STATUS_IGNORE);
  memcpy(request, &mine, sizeof(mine));
  return status;
}

static int mh_mpi_cancel(void* context, void** request) {
  MPI_Request mine;
  int status;
  (void)context;
  if (mh_mpi_ended()) return MPI_ERR_COMM;
  memcpy(&mine, request, sizeof(mine));
  status = MPI_Cancel(&mine);
  return status == MPI_SUCCESS ? MPI_Wait(&mine, MPI_STATUS_IGNORE) : status;
}

static inline int mh_mpi_transport_free(mh_transport* transport) {
  MPI_Comm* comm = (MPI_Comm*)transport->context;
  int status = MPI_SUCCESS;
  if (comm != NULL && !mh_mpi_ended()) status = MPI_Comm_free(comm);
  free(comm);
  transport->context = NULL;
  return status;
}

static inline int mh_mpi_transport(MPI_Comm given, mh_transport* transport) {
  MPI_Comm* comm = (MPI_Comm*)malloc(sizeof(MPI_Comm));
  int status, level = MPI_THREAD_SINGLE;
  memset(transport, 0, sizeof(*transport));
  if (comm == NULL || mh_mpi_ended()) {
    free(comm);
    return comm == NULL ? MPI_ERR_NO_MEM : MPI_ERR_COMM;
  }
  status = MPI_Comm_dup(given, comm);
  if (status != MPI_SUCCESS) {
    free(comm);
    return status;
  }
  MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  MPI_Query_thread(&level);
  transport->size = sizeof(*transport);
  transport->context = comm;
  transport->rank = mh_mpi_rank;
  transport->ranks = mh_mpi_ranks;
  transport->isend = mh_mpi_isend;
  transport->irecv = mh_mpi_irecv;
  transport->test = mh_mpi_test;
  transport->cancel = mh_mpi_cancel;
  transport->any_thread = level == MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

#ifdef __cplusplus
}
#endif
#endif
