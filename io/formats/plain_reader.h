// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moonhalo/io/base/h5.h"
#include "moonhalo/io/base/slices.h"

namespace moonhalo::io {

/// A positioned read costs about as much as copying this many bytes. Rows that begin no farther apart are read
/// together.
constexpr size_t kReadCost = size_t{8} << 10;

/// An array whose elements are in a file as they are, at fixed distances.
struct PlainArray {
  int descriptor;
  uint64_t offset;  ///< of the first element
  size_t element_size;
  const std::vector<int64_t>& shape;
  const std::vector<int64_t>& strides;  ///< bytes between neighbours along each dim; empty: row-major without gaps
  bool reversed = false;                ///< the first dim is the innermost, as Fortran has it; without strides
};

/// Fills `out` with positioned reads, which need no lock; elements that are together are read together. Those of a
/// reversed array come with its first dim innermost. ValueError where the file ends too early.
void read_plain(const PlainArray& array, const std::vector<Slice>& slices, char* out, const h5::Where& where);

/// The rows of an array that read_plain reads together with their neighbours, as the shape of a chunk: 1 along dims
/// whose rows it reads one by one.
std::vector<int64_t> rows_together(const PlainArray& array);

/// Bytes that read_plain takes from the file.
double plain_read_bytes(const PlainArray& array, const std::vector<Slice>& slices);

/// Returns the price of read_plain, in bytes that are copied in a row: short rows bring their neighbours with them, and
/// each read costs as much as some bytes.
double plain_read_cost(const PlainArray& array, const std::vector<Slice>& slices);

}  // namespace moonhalo::io
