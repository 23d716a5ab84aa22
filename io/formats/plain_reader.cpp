// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/plain_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io {
namespace {

constexpr size_t kBounce = size_t{256} << 10;  // stays in a core's cache

void read_run(int file, char* out, uint64_t offset, size_t bytes, const h5::Where& where) {
  io_stats().stored += static_cast<int64_t>(bytes);
  const int64_t got = read_into(file, {{out, static_cast<int64_t>(bytes)}}, offset);
  TORCH_CHECK(got >= 0, where.to_string(), ": cannot read it\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  const auto done = static_cast<uint64_t>(got);
  TORCH_CHECK_VALUE(done == bytes, where.to_string(), ": the file is cut short\n  have  it ends at byte ",
                    offset + done, ", the selection needs ", bytes - done, " more\n  fix   copy or download it again");
}

void read_rows(int file, char* out, uint64_t offset, size_t bytes, size_t stride, int64_t count,
               const h5::Where& where) {
  // Short rows that are close together are read together and picked apart.
  if (count <= 1 || stride > kReadCost) {
    for (int64_t row = 0; row < count; ++row) {
      read_run(file, out, offset, bytes, where);
      out += bytes;
      offset += stride;
    }
    return;
  }
  const auto at_once = static_cast<int64_t>(kBounce / stride);
  std::vector<char> bounce(static_cast<size_t>(std::min(at_once, count)) * stride);
  while (count > 0) {
    const int64_t rows = std::min(count, at_once);
    read_run(file, bounce.data(), offset, static_cast<size_t>(rows - 1) * stride + bytes, where);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out, bounce.data() + static_cast<size_t>(row) * stride, bytes);
      out += bytes;
    }
    offset += static_cast<uint64_t>(rows) * stride;
    count -= rows;
  }
}

std::vector<size_t> strides_of(const PlainArray& array, const std::vector<int64_t>& shape) {
  if (!array.strides.empty()) return {array.strides.begin(), array.strides.end()};
  std::vector<size_t> strides(shape.size());
  size_t stride = array.element_size;
  for (size_t dim = strides.size(); dim-- > 0; stride *= static_cast<size_t>(shape[dim])) strides[dim] = stride;
  return strides;
}

template <typename Element>
std::vector<Element> as_in_file(const PlainArray& array, const std::vector<Element>& by_dim) {
  if (!array.reversed) return by_dim;
  return {by_dim.rbegin(), by_dim.rend()};
}

/// The innermost dims up to and including the first that is not taken whole make one run of bytes.
struct Runs {
  std::vector<size_t> strides;  // by dim
  size_t bytes = 0;             // of a run
  size_t dims = 0;              // before it, of which the last counts its rows
};

/// `slices`: as in the file, the innermost dim last.
Runs runs_of(const PlainArray& array, const std::vector<Slice>& slices) {
  const std::vector<int64_t> shape = as_in_file(array, array.shape);
  Runs runs{strides_of(array, shape), array.element_size, slices.size()};
  bool whole = true;
  while (runs.dims > 0 && whole) {
    const Slice& slice = slices[runs.dims - 1];
    if (slice.count > 1 && (slice.step != 1 || runs.strides[runs.dims - 1] != runs.bytes)) break;
    --runs.dims;
    runs.bytes *= static_cast<size_t>(slice.count);
    whole = slice.count == shape[runs.dims];
  }
  return runs;
}

size_t row_stride(const Runs& runs, const std::vector<Slice>& slices) {
  return static_cast<size_t>(slices[runs.dims - 1].step) * runs.strides[runs.dims - 1];
}

}  // namespace

std::vector<int64_t> rows_together(const PlainArray& array) {
  const std::vector<int64_t> shape = as_in_file(array, array.shape);
  const std::vector<size_t> strides = strides_of(array, shape);
  std::vector<int64_t> together(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1 && strides[dim - 1] <= kReadCost;) together[dim] = shape[dim];
  return as_in_file(array, together);
}

double plain_read_bytes(const PlainArray& array, const std::vector<Slice>& by_dim) {
  const std::vector<Slice> slices = as_in_file(array, by_dim);
  const Runs runs = runs_of(array, slices);
  if (runs.dims == 0) return static_cast<double>(runs.bytes);
  const auto rows = static_cast<double>(slices[runs.dims - 1].count);
  double bytes = rows * static_cast<double>(runs.bytes);
  if (rows > 1 && row_stride(runs, slices) <= kReadCost)
    bytes += (rows - 1) * static_cast<double>(row_stride(runs, slices) - runs.bytes);
  for (size_t dim = 0; dim + 1 < runs.dims; ++dim) bytes *= static_cast<double>(slices[dim].count);
  return bytes;
}

double plain_read_cost(const PlainArray& array, const std::vector<Slice>& by_dim) {
  const std::vector<Slice> slices = as_in_file(array, by_dim);
  const Runs runs = runs_of(array, slices);
  double count = 1;
  for (size_t dim = 0; dim < runs.dims; ++dim) count *= static_cast<double>(slices[dim].count);
  const bool picked = runs.dims > 0 && slices[runs.dims - 1].count > 1 && row_stride(runs, slices) <= kReadCost;
  return count * static_cast<double>(runs.bytes + (picked ? row_stride(runs, slices) : kReadCost));
}

void read_plain(const PlainArray& array, const std::vector<Slice>& by_dim, char* out, const h5::Where& where) {
  const std::vector<Slice> slices = as_in_file(array, by_dim);
  const Runs runs = runs_of(array, slices);
  uint64_t offset = array.offset;
  for (size_t dim = 0; dim < slices.size(); ++dim)
    offset += static_cast<uint64_t>(slices[dim].begin) * runs.strides[dim];
  if (runs.dims == 0) return read_run(array.descriptor, out, offset, runs.bytes, where);

  const size_t row_dim = runs.dims - 1;
  std::vector<int64_t> at(row_dim, 0);
  for (;;) {
    read_rows(array.descriptor, out, offset, runs.bytes, row_stride(runs, slices), slices[row_dim].count, where);
    out += runs.bytes * static_cast<size_t>(slices[row_dim].count);
    size_t dim = row_dim;
    for (;;) {
      if (dim == 0) return;
      --dim;
      const uint64_t step = static_cast<uint64_t>(slices[dim].step) * runs.strides[dim];
      offset += step;
      if (++at[dim] < slices[dim].count) break;
      offset -= step * static_cast<uint64_t>(at[dim]);
      at[dim] = 0;
    }
  }
}

}  // namespace moonhalo::io
