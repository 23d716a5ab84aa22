// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/array_map.h"

namespace moonhalo::io {

/// The same elements in two layouts. Strides are bytes.
struct StridedCopy {
  std::vector<int64_t> count, from_strides, to_strides;
  size_t run;  ///< bytes that are together in both

  /// Makes runs as long as they are in both.
  void drop_dense_dims();
  void copy(const char* from, char* to, size_t dim = 0) const;
  /// The same for what is not read soon (stream_copy.h).
  void stream(const char* from, char* to, size_t dim = 0) const;
};

/// The elements of a dense box, in row-major order.
struct DenseBox {
  const Box& box;
  size_t element_size;
  /// Where `part` of it begins, in bytes.
  int64_t offset(const Box& part) const;
};
/// Returns how `part`, which is in both, is copied from one dense box into another, from its first element on.
StridedCopy copy_between(const DenseBox& from, const DenseBox& to, const Box& part);

/// A box of cells of a selection, with their rows dense in memory. Cells count in row-major order.
class CellBox {
 public:
  /// All must outlive it.
  CellBox(const ArrayMap& map, const ChunkGrid& grid, const Box& cells);

  int64_t count() const { return cells_.numel(); }
  /// The number of cell i's chunk along every dim.
  std::vector<int64_t> chunk(int64_t i) const;
  /// True if cell i has every element of its chunk that is in the array.
  bool has_whole_chunk(int64_t i) const;

  /// Where cell i stands in its chunk and among the rows; `part` copies from the chunk to the rows.
  struct Place {
    StridedCopy part;
    int64_t in_chunk, in_rows;  ///< of its first element, in bytes
  };
  Place place(int64_t i) const;

 private:
  std::vector<int64_t> cell(int64_t i) const;

  const ArrayMap& map_;
  const ChunkGrid& grid_;
  const Box cells_, rows_;
  const std::vector<int64_t> chunk_strides_, row_strides_;
};

}  // namespace moonhalo::io
