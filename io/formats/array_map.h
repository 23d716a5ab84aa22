// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/io/base/h5.h"
#include "moonhalo/io/base/slices.h"
#include "moonhalo/io/codecs/codecs.h"

namespace moonhalo::io {

/// An array of a file as a value: how it is cut into chunks and what was done to each. With it, and where a chunk
/// is, any thread reads elements without the library that wrote the file.
struct ArrayMap {
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk;  ///< shape of a chunk; those at the ends reach beyond the array
  size_t element_size = 0;
  bool swapped = false;       ///< stored in the other byte order
  std::vector<Codec> codecs;  ///< in the order of writing
  size_t parts = 1;           ///< numbers of an element: 2 of complex ones
  std::vector<size_t> order;  ///< dims as they are in a chunk, the slowest first; empty: in their own order
  std::string fill;           ///< one element as in memory: what stands in chunks that were never written
  size_t chunk_bytes() const;
};

/// The place of one chunk in the file.
struct StoredChunk {
  uint64_t offset = 0;
  uint64_t bytes = 0;    ///< 0: it was never written
  uint32_t skipped = 0;  ///< codecs that were not applied to it, by bit
};

/// The map of a dataset in chunks that all went through codecs known here, or through none, whose elements are in
/// the file as `memory` is in memory, or byte-swapped. Nothing for any other: HDF5 itself must read it. `list`: its
/// creation list.
std::optional<ArrayMap> read_map(hid_t dataset, hid_t list, hid_t memory, const h5::Where& where);

/// `chunk`: its number along every dim. A few microseconds; HDF5 keeps what it has read of the index.
StoredChunk find_chunk(hid_t dataset, const ArrayMap& map, const std::vector<int64_t>& chunk, const h5::Where& where);

/// Shows how chunks divide one dim of a selection:
///
///     chunks of 4     |0 1 2 3|4 5 6 7|8 9 . .|
///     slice 2:10:3        0     1       2            rows 0, 1 and 2 of the selection: cells [0, 1), [1, 2), [2, 3)
///
/// A cell is what one chunk holds of the selection. Cells are numbered from 0; none is empty.
class ChunkCells {
 public:
  ChunkCells(const Slice& slice, int64_t chunk);

  int64_t count() const { return count_; }
  int64_t chunk(int64_t cell) const;  ///< number of the chunk
  Interval rows(int64_t cell) const { return rows(Interval{cell, cell + 1}); }
  Interval rows(const Interval& cells) const;
  /// The cells that hold any of these rows.
  Interval cells(const Interval& rows) const;
  const Slice& slice() const { return slice_; }
  int64_t chunk_extent() const { return chunk_; }

 private:
  int64_t first_row(int64_t cell) const;
  Slice slice_;
  int64_t chunk_;
  int64_t count_;
};

/// One per dim.
using ChunkGrid = std::vector<ChunkCells>;
ChunkGrid chunk_grid(const ArrayMap& map, const std::vector<Slice>& slices);
/// The rows of the selection that a box of cells holds, and back: the cells that hold any of a box of rows.
Box rows_of(const ChunkGrid& grid, const Box& cells);
Box cells_of(const ChunkGrid& grid, const Box& rows);
Box all_cells(const ChunkGrid& grid);

}  // namespace moonhalo::io
