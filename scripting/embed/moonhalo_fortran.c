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

/* Says what is wrong with an array of this rank's into text[200], "" if nothing is. */
void moonhalo_problem_of_array(const CFI_cdesc_t* array, char* text) {
  int d;
  text[0] = '\0';
  if (dtype_of(array->type) < 0) {
    strcpy(
        text,
        "the array is of a type that none of real(4), real(8), integer(4), integer(8), complex(4) and complex(8) is");
    return;
  }
  for (d = 0; d < array->rank; ++d) {
    if (array->dim[d].extent <= 1 || array->dim[d].sm % (CFI_index_t)array->elem_len == 0) continue;
    snprintf(text, 200,
             "the array's elements are %ld bytes apart along dim %d, which is no multiple of their %ld bytes; give a "
             "copy of it",
             (long)array->dim[d].sm, d + 1, (long)array->elem_len);
    return;
  }
}

/* Where another rank ends the program with the same message: time for it to do so. */
void moonhalo_let_another_tell(void) { sleep(5); }

/* Lists have one number for each dim of the array; `begin` counts from 1; a global extent of 0 is not given. */
static mh_block block_of(const CFI_cdesc_t* array, const int64_t* ghost_low, const int64_t* ghost_high,
                         const int64_t* begin, const int64_t* global) {
  mh_block block;
  int d;
  memset(&block, 0, sizeof(block));
  block.size = sizeof(block);
  block.data = array->base_addr;
  block.dtype = dtype_of(array->type);
  block.ndim = array->rank;
  block.order = MH_FIRST_FASTEST;
  for (d = 0; d < array->rank && d < MH_MAX_DIMS; ++d) {
    block.extent[d] = array->dim[d].extent;
    block.stride[d] = array->dim[d].sm / (CFI_index_t)array->elem_len;
    block.ghost_low[d] = ghost_low[d];
    block.ghost_high[d] = ghost_high[d];
    block.begin[d] = begin[d] - 1;
    block.global[d] = global[d];
  }
  return block;
}

/* Without a problem of the array. */
mh_status moonhalo_field_of_array(mh_session* session, const char* name, CFI_cdesc_t* array, const int64_t* ghost_low,
                                  const int64_t* ghost_high, const int64_t* begin, const int64_t* global, int filled) {
  mh_block block = block_of(array, ghost_low, ghost_high, begin, global);
  block.ghosts_filled = filled;
  return mh_field(session, name, &block);
}

/* Boxes on their way to mh_boxes, which takes them all at once. */
struct boxes {
  int count;
  mh_block block[1];
};

/* One more box, an array without a problem; `list` is NULL at first. Without memory it returns NULL, and the list is as
 * it was. */
void* moonhalo_add_box(void* list, CFI_cdesc_t* array, const int64_t* ghost_low, const int64_t* ghost_high,
                       const int64_t* begin, const int64_t* global) {
  const size_t count = list == NULL ? 0 : (size_t)((struct boxes*)list)->count;
  struct boxes* longer = (struct boxes*)realloc(list, sizeof(struct boxes) + count * sizeof(mh_block));
  if (longer == NULL) return NULL;
  longer->block[count] = block_of(array, ghost_low, ghost_high, begin, global);
  longer->count = (int)count + 1;
  return longer;
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
                        double timeout_s, double call_budget_s, mh_session** session) {
  mh_options options = MH_OPTIONS;
  options.script = script;
  options.mpi_fcomm = comm;
  options.transport = transport;
  options.settings = settings;
  options.timeout_s = timeout_s;
  options.call_budget_s = call_budget_s;
  return mh_open(&options, session);
}
