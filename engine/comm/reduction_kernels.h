// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// TypeError, starting with `verb`, if values of `dtype` cannot be reduced by `op`: max and min of complex numbers,
/// averages of integers and bools. NotImplementedError for dtypes without arithmetic here (quantized, float8, ...).
void check_reducible(const char* verb, ReduceOp op, at::ScalarType dtype);

/// The value that changes nothing when it is reduced with others: for max the least of `dtype`, infinite if it can be.
/// There is none for avg.
at::Scalar neutral_value(ReduceOp op, at::ScalarType dtype);

/// Reduces `n` elements of host memory over `sources`, one of each rank, along their tree (sum_tree.h), and writes the
/// result to every destination (which may be one of the sources). Half and bfloat16 are accumulated in float and
/// rounded once; NaN wins in max and min; bool: sum and max are "or", product and min are "and". Needs no
/// communication; `dtype` passes check_reducible.
void reduce_elements(ReduceOp op, at::ScalarType dtype, c10::ArrayRef<const void*> sources, int64_t n,
                     c10::ArrayRef<void*> destinations);

/// The same in steps: two parts' values become one, of the partial dtype of `dtype`, finished when it has those of all
/// `ranks`. `out` is apart from both operands, or begins where one of that dtype does; the operands are apart.
at::ScalarType partial_dtype(at::ScalarType dtype);
struct Operand {
  const void* data;
  bool raw;  ///< one rank's own values, of `dtype`
};
void reduce_two(ReduceOp op, at::ScalarType dtype, Operand a, Operand b, int64_t n, void* out);
void finish_reduction(ReduceOp op, at::ScalarType dtype, const void* partial, int ranks, int64_t n, void* out);

/// The same for host tensors of one shape and dtype and any strides, into `out`: block by block, without packing where
/// all of them have runs in a row.
void reduce_tensors(ReduceOp op, const std::vector<at::Tensor>& sources, at::Tensor& out);

}  // namespace moonhalo
