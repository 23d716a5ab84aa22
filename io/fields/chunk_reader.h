// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/chunk_source.h"
#include "moonhalo/io/shares/cell_layout.h"

namespace moonhalo::io {

/// Reads chunks without HDF5's lock: their source says where they are, then LibTorch's threads
/// (at::get_num_threads) read, decode and copy them.
class ChunkReader {
 public:
  /// All must outlive it.
  ChunkReader(const ArrayMap& map, const ChunkSource& source, const h5::Where& where)
      : map_(map), source_(source), where_(where) {}

  /// Fills `out`, dense in the shape of the rows of `cells`. ValueError that names the first damaged chunk.
  void read(const ChunkGrid& grid, const Box& cells, char* out) const;
  /// One chunk that was written, decoded, in the byte order of this machine; it is in `target`, or without one in
  /// `decoder`.
  const char* load(const std::vector<int64_t>& chunk, const StoredChunk& stored, ChunkDecoder& decoder,
                   char* target = nullptr) const;

 private:
  void read_cell(const CellBox& box, int64_t i, const StoredChunk& stored, char* out, ChunkDecoder& decoder) const;

  const ArrayMap& map_;
  const ChunkSource& source_;
  const h5::Where& where_;
};

}  // namespace moonhalo::io
