/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of memory, seen by the script in place (X15). */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host.h"

static double value(int64_t i, int64_t j, int64_t k) { return (double)(1000 * i + 31 * j + k % 11); }

/* What the script's checksum gives for extents n of a field with `value`, dims in the script's order. */
static double wanted(const int64_t* n, int reversed) {
  double sum = 0;
  int64_t a, b, c;
  for (a = 0; a < n[0]; ++a) {
    for (b = 0; b < n[1]; ++b) {
      for (c = 0; c < n[2]; ++c) {
        const double v = reversed ? value(c, b, a) : value(a, b, c);
        sum += v * (double)(1 * (a + 1) + 2 * (b + 1) + 3 * (c + 1));
      }
    }
  }
  return sum;
}

/* A block of a field of 7 x 5 x 4, cut over the first two dims, with ghosts of 1 and 2 everywhere. order: as mh_order.
 */
static void check_layout(const host* h, mh_session* session, int order, const char* name) {
  const int64_t whole[3] = {7, 5, 4};
  int64_t owned[3], i, j, k;
  double *memory, out[4], in = name[0];
  int begin[3] = {0, 0, 0}, d;
  mh_block block;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.dtype = MH_FLOAT64;
  block.ndim = 3;
  block.order = order;
  owned[0] = share(7, h->rows, h->row, &begin[0]);
  owned[1] = share(5, h->columns, h->column, &begin[1]);
  owned[2] = 4;
  for (d = 0; d < 3; ++d) {
    block.extent[d] = owned[d] + 3;
    block.ghost_low[d] = 1;
    block.ghost_high[d] = 2;
    block.begin[d] = begin[d];
    block.global[d] = whole[d];
  }
  memory = (double*)calloc((size_t)(block.extent[0] * block.extent[1] * block.extent[2]), sizeof(double));
  for (i = 0; i < owned[0]; ++i) {
    for (j = 0; j < owned[1]; ++j) {
      for (k = 0; k < owned[2]; ++k) {
        const int64_t place = order == MH_LAST_FASTEST ? ((i + 1) * block.extent[1] + j + 1) * block.extent[2] + k + 1
                                                       : ((k + 1) * block.extent[1] + j + 1) * block.extent[0] + i + 1;
        memory[place] = value(begin[0] + i, begin[1] + j, k);
      }
    }
  }
  block.data = memory;
  EXPECT(mh_field(session, name, &block) == MH_OK);
  EXPECT(mh_call(session, "checksum", 1, &in, 4, out) == MH_OK);
  const int64_t n[3] = {order == MH_LAST_FASTEST ? 7 : 4, 5, order == MH_LAST_FASTEST ? 4 : 7};
  EXPECT(out[0] == wanted(n, order == MH_FIRST_FASTEST));
  EXPECT(out[1] == 3 && out[2] == (double)n[0] && out[3] == (double)n[2]);
  EXPECT(mh_field(session, name, NULL) == MH_OK);
  free(memory);
}

/* The script writes where the solver reads; ghosts and padding stay as they were; nothing was copied. */
static void check_in_place(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  const double in[2] = {'u', 0.25};
  const double first = *at(&p, 0, 0), last = *at(&p, p.height - 1, p.width - 1);
  char report[4000], address[64];
  double before = 0, after = 0;
  EXPECT(mh_call(session, "bytes", 0, NULL, 1, &before) == MH_OK);
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "add", 2, in, 0, NULL) == MH_OK);
  EXPECT(mh_call(session, "bytes", 0, NULL, 1, &after) == MH_OK);
  EXPECT(after == before); /* registering and writing send nothing */
  EXPECT(*at(&p, 0, 0) == first + 0.25 && *at(&p, p.height - 1, p.width - 1) == last + 0.25);
  EXPECT(changed_outside(&p) == 0);

  EXPECT(mh_report(session, report, sizeof(report)) == MH_OK);
  snprintf(address, sizeof(address), "at %p", (void*)at(&p, 0, 0));
  EXPECT(strstr(report, address) != NULL);
  EXPECT_ERROR(mh_report(session, report, 10), MH_USAGE, "the text does not fit");

  /* The solver goes on in its memory, and the script sees it; then the memory moves. */
  {
    const double u = 'u';
    double sum = 0, next[4], moved_sum[4];
    padded moved;
    *at(&p, 0, 0) += 1;
    EXPECT(mh_call(session, "checksum", 1, &u, 4, next) == MH_OK);
    EXPECT(next[0] > sum);
    moved = make_padded(h, 13, 11);
    EXPECT(mh_field(session, "u", &moved.block) == MH_OK);
    memset(p.memory, 0, sizeof(double) * (size_t)p.count);
    EXPECT(mh_call(session, "checksum", 1, &u, 4, moved_sum) == MH_OK);
    EXPECT(moved_sum[0] != next[0] && moved_sum[0] > 0);
    EXPECT(mh_field(session, "u", NULL) == MH_OK);
    free(moved.memory);
  }
  free(p.memory);
}

/* The ghosts that the solver has filled are read in place of messages. */
static void check_filled_ghosts(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  mh_block filled = p.block;
  double with[2], without[2], spoilt[2];
  int64_t i;
  filled.ghosts_filled = 1;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "smooth", 0, NULL, 2, without) == MH_OK);
  EXPECT(h->ranks == 1 || without[1] > 0);
  /* What make_padded gives to an element, for the rows of neighbours. */
  for (i = 0; i < p.count; ++i) {
    const int64_t row = p.block.begin[0] + i / p.pitch - 2, column = p.block.begin[1] + i % p.pitch - 1;
    p.memory[i] = 0.01 * (double)row + 0.1 * (double)((column + 7) % 7);
  }
  EXPECT(mh_field(session, "u", &filled) == MH_OK);
  EXPECT(mh_call(session, "smooth", 0, NULL, 2, with) == MH_OK);
  EXPECT(with[1] == 0 && fabs(with[0] - without[0]) < 1e-10 * without[0]);
  for (i = 0; i < p.pitch; ++i) p.memory[p.pitch + i] += 1;
  EXPECT(mh_call(session, "smooth", 0, NULL, 2, spoilt) == MH_OK);
  EXPECT(h->rows == 1 || fabs(spoilt[0] - without[0]) > 1e-3);
  if (h->ranks > 1) {
    if (h->rank == 0) filled.ghosts_filled = 0;
    EXPECT_ERROR(mh_field(session, "u", &filled), MH_USAGE, "mh_field: ranks 0 and 1 want different fields");
  }
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  free(p.memory);
}

/* Sums of a field and of its mask, the mean of what is there, and whether both are cut alike. */
static void check_mask(const host* h, mh_session* session, mh_block* boxes, int holes) {
  double out[4], sum = 0;
  const double name = 'b';
  int i, j, k, count = 0;
  /* With holes the second box of rank 0 is missing. */
  for (k = 0; k < 2 * h->ranks; ++k) {
    if (holes && k == h->ranks) continue;
    for (i = 2 * k; i < 2 * k + 2; ++i) {
      for (j = 0; j < 3; ++j) sum += 10 * i + j + 0.5, ++count;
    }
  }
  sum += h->ranks; /* the solver has added 1 in the first box of every rank */
  EXPECT(mh_boxes(session, "b", holes && h->rank == 0 ? 1 : 2, boxes) == MH_OK);
  EXPECT(mh_call(session, "masked", 1, &name, 4, out) == MH_OK);
  EXPECT(fabs(out[0] - sum) < 1e-9 && out[1] == count && fabs(out[2] - sum / count) < 1e-12 && out[3] == 1);
  if (holes) {
    EXPECT(mh_call(session, "verify_masked", 0, NULL, 1, out) == MH_OK && out[0] < 1e-12);
  } else if (h->ranks > 1) { /* rows between others are missing */
    check_mask(h, session, boxes, 1);
  }
}

/* Two boxes a rank, in turns along the rows, as patches of an adaptive mesh. The script writes one of them. */
static void check_boxes(const host* h, mh_session* session) {
  double memory[2][4 * 5], out[4];
  const double name = 'b', add[2] = {'b', 0.5};
  mh_block boxes[2];
  char report[4000];
  int k, i, j;
  double wanted = 0;
  memset(boxes, 0, sizeof(boxes));
  for (k = 0; k < 2; ++k) {
    for (i = 0; i < 20; ++i) memory[k][i] = -7;
    boxes[k].size = sizeof(mh_block);
    boxes[k].data = memory[k];
    boxes[k].dtype = MH_FLOAT64;
    boxes[k].ndim = 2;
    boxes[k].extent[0] = 4;
    boxes[k].extent[1] = 5;
    for (j = 0; j < 2; ++j) boxes[k].ghost_low[j] = boxes[k].ghost_high[j] = 1;
    boxes[k].begin[0] = 2 * (k * h->ranks + h->rank); /* rows of 2, columns of 3 */
    for (i = 0; i < 2; ++i) {
      for (j = 0; j < 3; ++j) memory[k][(i + 1) * 5 + j + 1] = (double)(10 * (boxes[k].begin[0] + i) + j);
    }
  }
  for (i = 0; i < 4 * h->ranks; ++i) {
    for (j = 0; j < 3; ++j) wanted += (10 * i + j) * (1.0 * (i + 1) + 2 * (j + 1));
  }
  EXPECT(mh_boxes(session, "b", 2, boxes) == MH_OK);
  EXPECT(mh_call(session, "checksum", 1, &name, 4, out) == MH_OK);
  EXPECT(out[0] == wanted && out[2] == 4 * h->ranks && out[3] == 3);
  memory[0][6] += 1; /* the solver goes on; the script sees it */
  EXPECT(mh_call(session, "add", 2, add, 0, NULL) == MH_OK);
  EXPECT(memory[0][6] == 10 * boxes[0].begin[0] + 1.5 && memory[1][13] == 10 * boxes[1].begin[0] + 12.5);
  EXPECT(memory[0][0] == -7 && memory[1][19] == -7 && memory[1][5] == -7);
  EXPECT(mh_report(session, report, sizeof(report)) == MH_OK && strstr(report, "copied from 2 boxes") != NULL);
  check_mask(h, session, boxes, 0);
  if (h->rank == 0) boxes[0].begin[0] = 2 * h->ranks;
  EXPECT_ERROR(mh_boxes(session, "b", 2, boxes), MH_USAGE, "mh_boxes('b'): boxes: two boxes own the same elements");
  EXPECT_ERROR(mh_boxes(session, NULL, 2, boxes), MH_USAGE, "mh_boxes: no name");
  EXPECT_ERROR(mh_boxes(session, "b", 2, NULL), MH_USAGE, "mh_boxes: no boxes");
  EXPECT(mh_field(session, "b", NULL) == MH_OK);
}

/* Boxes that no function has written are not written, and those that a field has replaced are not read: their memory
   allows neither. */
static void check_memory_of_boxes(const host* h, mh_session* session) {
  const size_t bytes = 1 << 16;
  double* const memory = (double*)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  double own[6], out[4];
  const double name = 'b';
  mh_block block;
  int k;
  EXPECT(memory != MAP_FAILED);
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = memory;
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  block.extent[0] = 2;
  block.extent[1] = 3;
  block.begin[0] = 2 * h->rank;
  for (k = 0; k < 6; ++k) memory[k] = own[k] = k;
  EXPECT(mh_boxes(session, "b", 1, &block) == MH_OK);
  mprotect(memory, bytes, PROT_READ);
  EXPECT(mh_call(session, "checksum", 1, &name, 4, out) == MH_OK && out[2] == 2 * h->ranks);
  block.data = own;
  EXPECT(mh_field(session, "b", &block) == MH_OK);
  munmap(memory, bytes);
  EXPECT(mh_call(session, "checksum", 1, &name, 4, out) == MH_OK && out[2] == 2 * h->ranks);
  EXPECT(mh_field(session, "b", NULL) == MH_OK);
}

/* Ranks that stand in the grid in columns, and ranks without rows. */
static void check_places(const host* h, mh_session* session) {
  double data[64], out[4];
  const double in = 'c';
  mh_block block;
  int k;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.dtype = MH_FLOAT64;
  block.ndim = 1;
  block.data = data;
  /* The last rank owns the first rows. */
  block.extent[0] = h->rank + 1;
  for (k = h->ranks - 1; k > h->rank; --k) block.begin[0] += k + 1;
  for (k = 0; k <= h->rank; ++k) data[k] = (double)(block.begin[0] + k);
  EXPECT(mh_field(session, "c", &block) == MH_OK);
  EXPECT(mh_call(session, "checksum", 1, &in, 4, out) == MH_OK);
  {
    double sum = 0;
    const int n = h->ranks * (h->ranks + 1) / 2;
    for (k = 0; k < n; ++k) sum += (double)k * (k + 1);
    EXPECT(out[0] == sum && out[2] == n);
  }
  /* All but the first and the last own nothing. */
  block.begin[0] = h->rank == 0 ? 0 : 3;
  block.extent[0] = h->rank == 0 ? 3 : h->rank == h->ranks - 1 ? 4 : 0;
  for (k = 0; k < block.extent[0]; ++k) data[k] = (double)(block.begin[0] + k);
  if (block.extent[0] == 0) block.data = NULL;
  EXPECT(mh_field(session, "c", &block) == MH_OK);
  EXPECT(mh_call(session, "checksum", 1, &in, 4, out) == MH_OK);
  EXPECT(out[0] == (h->ranks == 1 ? 0 + 2 + 6 : 0 + 2 + 6 + 12 + 20 + 30 + 42));
  EXPECT(mh_field(session, "c", NULL) == MH_OK);
}

/* The last rank has no cells: no memory, nothing that it says of its block is of use, but ghosts like all others'. The
   field is [4 per rank, 5], with a ghost row and column all round. */
static void check_without_cells(const host* h, mh_session* session, int order) {
  double memory[6 * 7], out[4], sum = 0;
  const double in[2] = {'e', 0.5};
  mh_block block;
  int i, j, d;
  const int owners = h->ranks - 1, rows = order == MH_LAST_FASTEST ? 0 : 1;
  if (owners == 0) return;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.dtype = MH_FLOAT64;
  block.ndim = 2;
  block.order = order;
  for (d = 0; d < 2; ++d) block.ghost_low[d] = block.ghost_high[d] = 1;
  if (h->rank < owners) {
    block.data = memory;
    block.extent[rows] = 6;
    block.extent[1 - rows] = 7;
    block.stride[rows] = 7;
    block.stride[1 - rows] = 1;
    block.begin[rows] = 4 * h->rank;
    for (i = 0; i < 4; ++i) {
      for (j = 0; j < 5; ++j) memory[7 * (i + 1) + j + 1] = 10 * (4 * h->rank + i) + j;
    }
  }
  EXPECT(mh_field(session, "e", &block) == MH_OK);
  EXPECT(mh_call(session, "checksum", 1, in, 4, out) == MH_OK);
  for (i = 0; i < 4 * owners; ++i) {
    for (j = 0; j < 5; ++j) sum += (10 * i + j) * ((i + 1) + 2 * (j + 1));
  }
  EXPECT(out[0] == sum && out[2] == 4 * owners && out[3] == 5);
  EXPECT(mh_call(session, "add", 2, in, 0, NULL) == MH_OK);
  if (h->rank < owners) EXPECT(memory[8] == 40 * h->rank + 0.5);
  EXPECT(mh_field(session, "e", NULL) == MH_OK);
}

/* What the sharded session gives is compared with whole fields; nothing is changed by that. */
static void check_verify(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  const double corner = *at(&p, 0, 0);
  double before[3], after[3], apart = 1, drawn[2];
  const double seed = 11;
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_call(session, "learned", 0, NULL, 3, before) == MH_OK);
  EXPECT(mh_call(session, "seed", 1, &seed, 0, NULL) == MH_OK && mh_call(session, "draw", 0, NULL, 1, drawn) == MH_OK);
  EXPECT(mh_call(session, "seed", 1, &seed, 0, NULL) == MH_OK);
  EXPECT(mh_call(session, "verify_train", 0, NULL, 1, &apart) == MH_OK && apart < 1e-12);
  EXPECT(mh_call(session, "verify_smear", 0, NULL, 1, &apart) == MH_OK && apart < 1e-12);
  EXPECT(mh_call(session, "draw", 0, NULL, 1, drawn + 1) == MH_OK && drawn[0] == drawn[1]);
  EXPECT(mh_call(session, "learned", 0, NULL, 3, after) == MH_OK);
  EXPECT(memcmp(before, after, sizeof(before)) == 0 && *at(&p, 0, 0) == corner && changed_outside(&p) == 0);
  if (h->ranks > 1) {
    EXPECT_ERROR(mh_call(session, "verify_own", 0, NULL, 0, NULL), MH_SCRIPT,
                 "host.verify: the function gives other numbers on");
    EXPECT(strstr(mh_error(), "field u[") != NULL && strstr(mh_error(), "one rank: ") != NULL);
  }
  EXPECT_ERROR(mh_call(session, "verify_failing", 0, NULL, 0, NULL), MH_SCRIPT,
               "host.verify: the function fails with whole fields\n  have  ");
  EXPECT(mh_call(session, "learned", 0, NULL, 3, after) == MH_OK);
  EXPECT(memcmp(before, after, sizeof(before)) == 0 && *at(&p, 0, 0) == corner);
  EXPECT(mh_call(session, "train", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  free(p.memory);
}

/* A field without holes has a mask too, which follows it. */
static void check_mask_of_grid(const host* h, mh_session* session) {
  padded p = make_padded(h, 13, 11);
  const double u = 'u';
  double out[4];
  EXPECT(mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "masked", 1, &u, 4, out) == MH_OK && out[1] == 13 * 11 && out[3] == 1);
  EXPECT(mh_field(session, "u", NULL) == MH_OK);
  EXPECT_ERROR(mh_call(session, "masked", 1, &u, 4, out), MH_SCRIPT, "no field 'u' was registered");
  free(p.memory);
}

/* With check_finite numbers that are not finite are errors on all ranks: the last one's block has one before the call,
   the function makes one, returns one, or is given one. The session goes on. */
static void check_finite(const host* h) {
  const double nan = strtod("nan", NULL);
  padded p = make_padded(h, 13, 11);
  mh_session* session = NULL;
  mh_options options = options_for(h);
  double out[2], kept;
  char place[100];
  int row, column;
  options.check_finite = 1;
  EXPECT(mh_open(&options, &session) == MH_OK && mh_field(session, "u", &p.block) == MH_OK);
  EXPECT(mh_call(session, "train", 0, NULL, 1, out) == MH_OK);
  kept = *at(&p, 1, 2);
  if (h->rank == h->ranks - 1) *at(&p, 1, 2) = nan;
  share(13, h->rows, h->rows - 1, &row);
  share(11, h->columns, h->columns - 1, &column);
  snprintf(place, sizeof(place), "field 'u' is nan at [%d, %d] before call 2 of the session\n", row + 1, column + 2);
  EXPECT_ERROR(mh_call(session, "train", 0, NULL, 1, out), MH_USAGE, place);
  EXPECT(h->ranks == 1 || strstr(mh_error(), "\n  rank  ") != NULL);
  *at(&p, 1, 2) = kept;
  EXPECT_ERROR(mh_call(session, "half", 1, &nan, 1, out), MH_USAGE, "mh_call('half'): argument 1 is nan before call 3");
  EXPECT_ERROR(mh_call(session, "infinite", 0, NULL, 2, out), MH_SCRIPT,
               "result 2 is -inf after call 4 of the session");
  EXPECT_ERROR(mh_call(session, "spoils", 0, NULL, 0, NULL), MH_SCRIPT, "field 'u' is inf at [0, 0] after call 5");
  if (h->row == 0 && h->column == 0) *at(&p, 0, 0) = kept;
  EXPECT(mh_call(session, "nothing", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  session = open_session(h, NULL); /* without it they are numbers as others */
  EXPECT(mh_call(session, "half", 1, &nan, 1, out) == MH_OK && out[0] != out[0]);
  EXPECT(mh_close(session) == MH_OK);
  options = options_for(h);
  options.check_finite = h->rank == 0;
  if (h->ranks > 1) EXPECT_ERROR(mh_open(&options, &session), MH_USAGE, "ranks 0 and 1 want different settings");
  free(p.memory);
}

/* Y13: ranges of the solver are in profiles of its script. */
static void check_ranges(mh_session* session) {
  double found;
  EXPECT(mh_range_begin("unseen") == MH_OK && mh_range_end() == MH_OK);
  EXPECT(mh_call(session, "begin_profile", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_range_begin("sweep") == MH_OK && mh_range_begin("inner") == MH_OK);
  EXPECT(mh_range_end() == MH_OK && mh_range_end() == MH_OK);
  EXPECT(mh_call(session, "ranges_found", 0, NULL, 1, &found) == MH_OK && found == 2);
  /* Begun before a profile and ended after it, with one within that outlives it, too. */
  EXPECT(mh_range_begin("unseen") == MH_OK);
  EXPECT(mh_call(session, "begin_profile", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(mh_range_begin("sweep") == MH_OK);
  EXPECT(mh_call(session, "ranges_found", 0, NULL, 1, &found) == MH_OK && found == 1);
  EXPECT(mh_range_begin("unseen") == MH_OK && mh_range_end() == MH_OK);
  EXPECT(mh_range_end() == MH_OK && strcmp(mh_error(), "") == 0);
  EXPECT(mh_range_end() == MH_OK);
  EXPECT_ERROR(mh_range_end(), MH_USAGE, "mh_range_end: no range is open on this thread");
  EXPECT_ERROR(mh_range_begin(NULL), MH_USAGE, "mh_range_begin: no name");
}

void test_fields(const host* h) {
  mh_session* session = open_session(h, "lr=0.125");
  double out[3];
  EXPECT(mh_version() == MH_VERSION);
  EXPECT(mh_sync(session) == MH_OK);
  EXPECT(mh_call(session, "nothing", 0, NULL, 0, NULL) == MH_OK);
  EXPECT(call1(session, "half", 3) == 1.5);
  EXPECT(mh_call(session, "learned", 0, NULL, 3, out) == MH_OK && out[2] == 0.125);
  check_ranges(session);
  check_layout(h, session, MH_LAST_FASTEST, "c");
  check_layout(h, session, MH_FIRST_FASTEST, "f");
  check_in_place(h, session);
  check_filled_ghosts(h, session);
  check_boxes(h, session);
  check_memory_of_boxes(h, session);
  check_places(h, session);
  check_without_cells(h, session, MH_LAST_FASTEST);
  check_without_cells(h, session, MH_FIRST_FASTEST);
  check_verify(h, session);
  check_mask_of_grid(h, session);
  check_finite(h);
  EXPECT(mh_close(session) == MH_OK);
}
