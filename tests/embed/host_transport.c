/* SPDX-License-Identifier: Apache-2.0 */
/* Transports that cannot be (X15). */
#include <string.h>

#include "host.h"

/* A transport that says it is one more than its ranks; its messages are never asked for. */
static int rank_of_none(void* ranks) { return *(int*)ranks; }
static int ranks_of_none(void* ranks) { return *(int*)ranks; }
static int no_send(void* context, const void* data, size_t bytes, int peer, int tag, void** request) {
  return context == NULL && data == NULL && bytes == 0 && peer == 0 && tag == 0 && request == NULL;
}
static int no_receive(void* context, void* data, size_t bytes, int peer, int tag, void** request) {
  return no_send(context, data, bytes, peer, tag, request);
}
static int no_test(void* context, void** request, int* done) { return context == NULL && request == NULL && *done; }
static int no_cancel(void* context, void** request) { return context == NULL && request == NULL; }

void errors_of_transports(mh_options options) {
  mh_session* session = NULL;
  int ranks = 3;
  mh_transport wrong;
  memset(&wrong, 0, sizeof(wrong));
  wrong.size = sizeof(wrong);
  wrong.context = &ranks;
  wrong.rank = rank_of_none;
  wrong.ranks = ranks_of_none;
  wrong.isend = no_send;
  wrong.irecv = no_receive;
  wrong.test = no_test;
  options.transport = &wrong;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport without all of its functions");
  wrong.cancel = no_cancel;
  EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "a transport of no ranks");
  EXPECT(strstr(mh_error(), "rank 3 of 3") != NULL && session == NULL);
}
