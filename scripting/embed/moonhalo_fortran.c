/* SPDX-License-Identifier: Apache-2.0 */
/* What moonhalo.f90 needs of C: arrays of any rank and kind, by the descriptor of the compiler that compiles it.
   Compiled with the program, because every Fortran compiler has a descriptor of its own. */
#include <ISO_Fortran_binding.h>
#include <moonhalo/moonhalo_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int dtype_of(CFI_type_t type) {
  if (type == CFI_type_float) return MH_FLOAT32;
  if (type == CFI_type_double) return MH_FLOAT64;
  if (type == CFI_type_int32_t) return MH_INT32;
  if (type == CFI_type_int64_t) return MH_INT64;
  if (type == CFI_type_float_Complex) return MH_COMPLEX64;
  if (type == CFI_type_double_Complex) return MH_COMPLEX128;
  return -1;
}

static int is_empty(const CFI_cdesc_t* array) {
  int d;
  for (d = 0; d < array->rank; ++d) {
    if (array->dim[d].extent == 0) return 1;
  }
  return 0;
}

/* Elements of dim 1 follow one another. */
static int is_dense(const CFI_cdesc_t* array) {
  return array->rank == 0 || array->dim[0].sm == (CFI_index_t)array->elem_len;
}

static int begins_with(const CFI_cdesc_t* array, const CFI_cdesc_t* first) {
  const ptrdiff_t apart = (const char*)first->base_addr - (const char*)array->base_addr;
  return first->rank == 0 && apart >= 0 && apart + first->elem_len <= array->elem_len;
}

/* Says what is wrong with an array into text[400], "" if nothing is. `first`: its first element, or a
   component of that; NULL where it is not given. Of a component of an array gfortran 12 describes how far its elements
   are apart, but not where they are, so such an array is refused without `first`. */
static void problem_of(const CFI_cdesc_t* array, const CFI_cdesc_t* first, char* text) {
  const CFI_cdesc_t* element = first == NULL ? array : first;
  int d;
  text[0] = '\0';
  if (dtype_of(element->type) < 0) {
    strcpy(
        text,
        "the array is of a type that none of real(4), real(8), integer(4), integer(8), complex(4) and complex(8) is");
    return;
  }
  if (is_empty(array)) return;
  if (first == NULL && !is_dense(array)) {
    snprintf(
        text, 400,
        "the array's elements do not follow one another\n  have  %ld bytes from one of %ld bytes to the next, as in "
        "a component cells%%p of an array of derived type\n  fix   mh_field_at(session, name, cells, cells(1, "
        "1)%%p), or mh_add_box_at",
        (long)array->dim[0].sm, (long)array->elem_len);
    return;
  }
  if (first != NULL && !begins_with(array, first)) {
    strcpy(
        text,
        "`first` is not part of the first element of `array`\n  have  other addresses, or another type; of a component "
        "cells%p the compiler has made a copy\n  fix   give the array itself: mh_field_at(session, name, cells, "
        "cells(1, 1)%p)");
    return;
  }
  for (d = 0; d < array->rank; ++d) {
    if (array->dim[d].extent <= 1 || array->dim[d].sm % (CFI_index_t)element->elem_len == 0) continue;
    snprintf(text, 400,
             "the array's elements are %ld bytes apart along dim %d, which is not a multiple of their %ld bytes; give a "
             "copy of it",
             (long)array->dim[d].sm, d + 1, (long)element->elem_len);
    return;
  }
}

/* Another rank ends the program with the same message. The launcher then ends this rank within these 30 seconds; one that
   does not gets the message from this rank, too. */
void moonhalo_wait_for_first_message(void) { sleep(30); }

/* Lists of Fortran, a number for each dim of an array; `begin` counts from 1; a global extent of 0 is not given. */
struct lists {
  int64_t ghost_low[15], ghost_high[15], begin[15], global[15];
  char problem[81]; /* "" if nothing is wrong with them */
};

static mh_block block_of(const CFI_cdesc_t* array, const CFI_cdesc_t* first, const struct lists* lists) {
  const CFI_cdesc_t* element = first == NULL ? array : first;
  mh_block block;
  int d;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = element->base_addr;
  block.dtype = dtype_of(element->type);
  block.ndim = array->rank;
  block.order = MH_FIRST_FASTEST;
  for (d = 0; d < array->rank && d < MH_MAX_DIMS; ++d) {
    block.extent[d] = array->dim[d].extent;
    block.stride[d] = array->dim[d].sm / (CFI_index_t)element->elem_len;
    block.ghost_low[d] = lists->ghost_low[d];
    block.ghost_high[d] = lists->ghost_high[d];
    block.begin[d] = lists->begin[d] - 1;
    block.global[d] = lists->global[d];
  }
  return block;
}

/* `first` as above. */
mh_status moonhalo_field_of_array(mh_session* session, const char* name, const struct lists* lists, int filled,
                                  const CFI_cdesc_t* array, const CFI_cdesc_t* first) {
  mh_block block;
  char problem[400], text[800];
  problem_of(array, first, problem);
  if (problem[0] != '\0' || lists->problem[0] != '\0') {
    snprintf(text, sizeof(text), "field '%.300s': %s", name, problem[0] != '\0' ? problem : lists->problem);
    return mh_refuse(session, "mh_field", text);
  }
  block = block_of(array, first, lists);
  block.ghosts_filled = filled;
  return mh_field(session, name, &block);
}

/* Boxes on their way to mh_boxes, which takes them all at once. */
struct boxes {
  int count;
  mh_block block[1];
};

/* One more box. `*list` is NULL at first. Where it fails, the list is as it was, and text[500] says why. */
mh_status moonhalo_add_box(void** list, char* text, const struct lists* lists, const CFI_cdesc_t* array,
                           const CFI_cdesc_t* first) {
  struct boxes* longer;
  const size_t count = *list == NULL ? 0 : (size_t)((struct boxes*)*list)->count;
  char problem[400];
  text[0] = '\0';
  problem_of(array, first, problem);
  if (problem[0] != '\0' || lists->problem[0] != '\0') {
    snprintf(text, 500, "mh_add_box: %s", problem[0] != '\0' ? problem : lists->problem);
    return MH_USAGE;
  }
  longer = (struct boxes*)realloc(*list, sizeof(struct boxes) + count * sizeof(mh_block));
  if (longer == NULL) {
    strcpy(text, "mh_add_box: no memory for another box");
    return MH_MEMORY;
  }
  longer->block[count] = block_of(array, first, lists);
  longer->count = (int)count + 1;
  *list = longer;
  return MH_OK;
}

/* mh_boxes, and the end of the list. */
mh_status moonhalo_boxes_of_list(mh_session* session, const char* name, void* list) {
  const struct boxes* boxes = (const struct boxes*)list;
  const mh_status status =
      boxes == NULL ? mh_boxes(session, name, 0, NULL) : mh_boxes(session, name, boxes->count, boxes->block);
  free(list);
  return status;
}

/* MH_OPTIONS, whose layout Fortran need not know. Addresses may be NULL, but the script's. */
mh_status moonhalo_open(const char* script, const int* comm, const mh_transport* transport, const char* settings,
                        double timeout_s, double call_budget_s, int check_finite, mh_session** session) {
  mh_options options = MH_OPTIONS;
  options.script = script;
  options.mpi_fcomm = comm;
  options.transport = transport;
  options.settings = settings;
  options.timeout_s = timeout_s;
  options.call_budget_s = call_budget_s;
  options.check_finite = check_finite;
  return mh_open(&options, session);
}
