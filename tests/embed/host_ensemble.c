/* SPDX-License-Identifier: Apache-2.0 */
/* An ensemble (X15): each group of ranks runs a member, and a field's first dim counts them. Members share one network. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

enum { kRows = 7, kColumns = 5 };

static double value(int member, int i, int j) { return sin(0.3 * (member + 1) * i + 0.7 * j + member); }

/* Rows [begin, begin + rows) of members [first, first + members), with a ghost row all round each. */
static mh_block make_members(int first, int members, int begin, int rows) {
  mh_block block;
  const int64_t extent[3] = {members, rows + 2, kColumns + 2};
  double* memory = (double*)calloc((size_t)(extent[0] * extent[1] * extent[2]), sizeof(double));
  int m, i, j;
  for (m = 0; m < members; ++m) {
    for (i = 0; i < rows; ++i) {
      for (j = 0; j < kColumns; ++j) memory[(m * extent[1] + i + 1) * extent[2] + j + 1] = value(first + m, begin + i, j);
    }
  }
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = memory;
  block.dtype = MH_FLOAT64;
  block.ndim = 3;
  for (i = 0; i < 3; ++i) {
    block.extent[i] = extent[i];
    block.ghost_low[i] = block.ghost_high[i] = i > 0;
  }
  block.begin[0] = first;
  block.begin[1] = begin;
  return block;
}

/* Loss, spread and weights after some steps of training on all members, then the sum over the member of this rank. */
static void measure(mh_session* session, mh_block block, double out[4]) {
  int i;
  EXPECT(mh_field(session, "e", &block) == MH_OK);
  for (i = 0; i < 3; ++i) EXPECT(mh_call(session, "train_ensemble", 0, NULL, 3, out) == MH_OK);
  EXPECT(mh_call(session, "sum_of_member", 0, NULL, 1, out + 3) == MH_OK);
  EXPECT(mh_close(session) == MH_OK);
  free(block.data);
}

/* Two members where the ranks are even in number, else one each rank. The reference has all on one rank. */
void test_ensemble(const host* h) {
  const int members = h->ranks % 2 == 0 ? 2 : h->ranks, domain = h->ranks / members, member = h->rank / domain;
  double found[4], expected[4], sum = 0;
  host one;
  int begin, rows, i, j;
  rows = share(kRows, domain, h->rank % domain, &begin);
  measure(open_session(h, NULL), make_members(member, 1, begin, rows), found);
  divide(&one, MPI_COMM_SELF);
  measure(open_session(&one, NULL), make_members(0, members, 0, kRows), expected);
  for (i = 0; i < 3; ++i) EXPECT(fabs(found[i] - expected[i]) < 1e-12 * (1 + fabs(expected[i])));
  for (i = 0; i < kRows; ++i) {
    for (j = 0; j < kColumns; ++j) sum += value(member, i, j);
  }
  EXPECT(fabs(found[3] - sum) < 1e-12);
}
