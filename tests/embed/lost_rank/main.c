/* SPDX-License-Identifier: Apache-2.0 */
/* Three processes of a solver without MPI, over sockets, of which one is killed (X15):  lost_rank SCRIPT.  The others get
   a code and a text, and not by their limit, and go on: with their own messages, and with a session of the two. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <moonhalo/moonhalo_c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRanks = 3, kLost = 1, kSets = 3 }; /* sets of sockets: of three ranks, of the two left, of the tests */

#define EXPECT(condition) expect((condition) != 0, #condition, __LINE__)
static void expect(int condition, const char* what, int line) {
  if (condition) return;
  fprintf(stderr, "process %d, line %d: not so: %s\n  mh_error: %s\n", (int)getpid(), line, what, mh_error());
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A message that leaves, arrives, or has arrived and waits for its receive. */
typedef struct message {
  size_t head[2]; /* tag, bytes */
  char* data;
  size_t moved; /* bytes of head and data */
  struct message* next;
} message;

typedef struct {
  int socket;
  message *leaving, *arrived; /* the oldest first */
  message* arriving;
} peer;

typedef struct {
  int rank, ranks;
  peer peers[kRanks];
} links;

typedef struct {
  message* sent; /* or NULL: a receive */
  peer* from;
  char* data;
  size_t bytes, tag;
} request;

static void append(message** list, message* one) {
  while (*list != NULL) list = &(*list)->next;
  one->next = NULL;
  *list = one;
}

/* Moves what can be moved. 1: the peer is gone. */
static int move(int socket, message* one, int out) {
  while (one->moved < sizeof(one->head) + one->head[1]) {
    const int in_head = one->moved < sizeof(one->head);
    char* const at = in_head ? (char*)one->head + one->moved : one->data + one->moved - sizeof(one->head);
    const size_t left = in_head ? sizeof(one->head) - one->moved : sizeof(one->head) + one->head[1] - one->moved;
    const ssize_t n = out ? send(socket, at, left, MSG_NOSIGNAL) : recv(socket, at, left, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n <= 0) return 1;
    one->moved += (size_t)n;
    if (!out && one->moved == sizeof(one->head)) one->data = (char*)malloc(one->head[1] + 1);
  }
  return 0;
}

static int progress(peer* p) {
  message* one;
  for (one = p->leaving; one != NULL; one = one->next) {
    if (move(p->socket, one, 1)) return 1;
    if (one->moved < sizeof(one->head) + one->head[1]) break;
  }
  for (;;) {
    if (p->arriving == NULL) p->arriving = (message*)calloc(1, sizeof(message));
    if (move(p->socket, p->arriving, 0)) return 1;
    if (p->arriving->moved < sizeof(one->head) || p->arriving->moved < sizeof(one->head) + p->arriving->head[1]) return 0;
    append(&p->arrived, p->arriving);
    p->arriving = NULL;
  }
}

static int rank_of(void* context) { return ((links*)context)->rank; }
static int ranks_of(void* context) { return ((links*)context)->ranks; }

static int isend_to(void* context, const void* data, size_t bytes, int to, int tag, void** made) {
  request* r = (request*)calloc(1, sizeof(request));
  r->from = &((links*)context)->peers[to];
  r->sent = (message*)calloc(1, sizeof(message));
  r->sent->head[0] = (size_t)tag;
  r->sent->head[1] = bytes;
  r->sent->data = (char*)(size_t)data;
  append(&r->from->leaving, r->sent);
  *made = r;
  return 0;
}

static int irecv_from(void* context, void* data, size_t bytes, int from, int tag, void** made) {
  request* r = (request*)calloc(1, sizeof(request));
  r->from = &((links*)context)->peers[from];
  r->data = (char*)data;
  r->bytes = bytes;
  r->tag = (size_t)tag;
  *made = r;
  return 0;
}

static void take_out(message** list, message* one) {
  while (*list != one) list = &(*list)->next;
  *list = one->next;
}

static int test_it(void* context, void** made, int* done) {
  request* r = (request*)*made;
  message* one;
  int gone = progress(r->from);
  (void)context;
  *done = 0;
  if (r->sent != NULL) {
    one = r->sent;
    if (one->moved < sizeof(one->head) + one->head[1]) return gone;
    take_out(&r->from->leaving, one);
  } else {
    for (one = r->from->arrived; one != NULL && one->head[0] != r->tag;) one = one->next;
    if (one == NULL) return gone;
    if (one->head[1] > r->bytes) return 2;
    memcpy(r->data, one->data, one->head[1]);
    take_out(&r->from->arrived, one);
    free(one->data);
  }
  free(one);
  free(r);
  *done = 1;
  return 0;
}

static int cancel_it(void* context, void** made) {
  (void)context;
  free(*made);
  return 0;
}

/* Ranks `ranks` of the program over one set of sockets. */
static mh_transport transport_of(links* all, int sets[kRanks][kRanks], int rank, int lost) {
  mh_transport t;
  int other, place = 0;
  memset(all, 0, sizeof(*all));
  memset(&t, 0, sizeof(t));
  for (other = 0; other < kRanks; ++other) {
    if (other == lost) continue;
    if (other == rank) all->rank = place;
    all->peers[place++].socket = sets[rank][other];
  }
  all->ranks = place;
  t.size = sizeof(t);
  t.context = all;
  t.rank = rank_of;
  t.ranks = ranks_of;
  t.isend = isend_to;
  t.irecv = irecv_from;
  t.test = test_it;
  t.cancel = cancel_it;
  return t;
}

/* Rows of a field of 12 x 9, and a step of training. */
static mh_session* open_and_train(const char* script, const mh_transport* t, double* field) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  mh_block block;
  const int ranks = t->ranks(t->context), rank = t->rank(t->context), height = 12 / ranks;
  double loss = 0;
  int i;
  for (i = 0; i < height * 9; ++i) field[i] = 0.01 * (rank * height * 9 + i);
  options.script = script;
  options.transport = t;
  options.timeout_s = 300;
  EXPECT(mh_open(&options, &session) == MH_OK);
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = field;
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  block.extent[0] = height;
  block.extent[1] = 9;
  block.begin[0] = rank * height;
  EXPECT(mh_field(session, "u", &block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, &loss) == MH_OK && loss > 0);
  return session;
}

static void send_byte(int socket) { EXPECT(send(socket, "x", 1, 0) == 1); }

static void wait_for_byte(int socket) {
  char byte;
  while (recv(socket, &byte, 1, 0) != 1) EXPECT(errno == EAGAIN);
}

/* Returns when the rank at the other end of a socket has ended. */
static void wait_for_end(int socket) {
  char byte;
  ssize_t n;
  while ((n = recv(socket, &byte, 1, 0)) != 0) EXPECT(n < 0 && errno == EAGAIN);
}

/* The rank is lost outside of Moonhalo, or inside of the function that all call. `late`: rank 0 calls when the rank is
   lost, and rank 2 well before. So rank 2, which waits for rank 0 alone, must learn of the loss from it. */
static void loses(const char* script, const char* function, int late, int sets[kSets][kRanks][kRanks], int rank) {
  const struct timespec some_time = {0, 300000000};
  links all, two;
  mh_transport t = transport_of(&all, sets[0], rank, -1);
  double field[12 * 9], seconds;
  mh_session* session = open_and_train(script, &t, field);
  if (rank == kLost) { /* No rank is in its training any more. */
    wait_for_byte(sets[2][kLost][0]);
    wait_for_byte(sets[2][kLost][2]);
    if (late) nanosleep(&some_time, NULL);
    if (strcmp(function, "train") == 0) kill(getpid(), SIGKILL);
  } else {
    send_byte(sets[2][rank][kLost]);
  }
  if (rank == 0 && late) wait_for_end(sets[2][0][kLost]);
  seconds = now();
  EXPECT(mh_call(session, function, 0, NULL, 0, NULL) == MH_RANK_LOST);
  seconds = now() - seconds;
  printf("%s, rank %d: after %.3f s: %s\n", function, rank, seconds, mh_error());
  EXPECT(strstr(mh_error(), "timed out") == NULL);
  EXPECT(strstr(mh_error(), "a message with rank 1") != NULL || strstr(mh_error(), "rank 1 ") != NULL);
  EXPECT(mh_call(session, function, 0, NULL, 0, NULL) == MH_RANK_LOST);
  EXPECT(strstr(mh_error(), "the session has ended before") != NULL);
  EXPECT(mh_close(session) == MH_OK);

  send_byte(sets[2][rank][2 - rank]);
  wait_for_byte(sets[2][rank][2 - rank]);
  t = transport_of(&two, sets[1], rank, kLost);
  session = open_and_train(script, &t, field);
  EXPECT(mh_call(session, function[0] == 't' ? "train" : "nothing", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
}

static void run(const char* script, const char* function, int late) {
  int sets[kSets][kRanks][kRanks], s, i, j, status, killed = 0;
  pid_t process[kRanks];
  for (s = 0; s < kSets; ++s) {
    for (i = 0; i < kRanks; ++i) {
      sets[s][i][i] = -1;
      for (j = 0; j < i; ++j) {
        int ends[2];
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        sets[s][i][j] = ends[0];
        sets[s][j][i] = ends[1];
      }
    }
  }
  for (i = 0; i < kRanks; ++i) {
    fflush(stdout);
    process[i] = fork();
    if (process[i] == 0) {
      /* Else the ends of the rank that is lost stay open here. */
      for (s = 0; s < kSets; ++s) {
        for (j = 0; j < kRanks * kRanks; ++j) {
          if (j / kRanks != i) close(sets[s][j / kRanks][j % kRanks]);
        }
      }
      loses(script, function, late, sets, i);
      fflush(stdout);
      _exit(0);
    }
  }
  for (s = 0; s < kSets; ++s) {
    for (j = 0; j < kRanks * kRanks; ++j) close(sets[s][j / kRanks][j % kRanks]);
  }
  for (i = 0; i < kRanks; ++i) {
    EXPECT(waitpid(process[i], &status, 0) == process[i]);
    if (i == kLost) {
      killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    } else {
      EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }
  EXPECT(killed);
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  run(argv[1], "train", 0);
  run(argv[1], "train", 1);
  run(argv[1], "is_killed_on_rank_1", 0);
  printf("lost_rank: two ranks go on without the third\n");
  return 0;
}
