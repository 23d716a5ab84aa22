// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/cell_layout.h"

namespace moonhalo::io {

/// Reads chunks without HDF5's lock: HDF5 says where they lie, then LibTorch's threads (at::get_num_threads) read,
/// decode and copy them.
class ChunkReader {
 public:
  /// `descriptor`: of the file that `dataset` lies in.
  ChunkReader(const ArrayMap& map, hid_t dataset, int descriptor, const h5::Where& where)
      : map_(map), dataset_(dataset), descriptor_(descriptor), where_(where), file_size_(size_of(descriptor, where)) {}

  /// Fills `out`, dense in the shape of the rows of `cells`. ValueError that names the first damaged chunk.
  void read(const ChunkGrid& grid, const Box& cells, char* out) const;
  /// One chunk that was written, decoded, in the byte order of this machine; it lies in `decoder`.
  const char* load(const std::vector<int64_t>& chunk, const StoredChunk& stored, ChunkDecoder& decoder) const;

 private:
  static uint64_t size_of(int descriptor, const h5::Where& where);
  void read_cell(const CellBox& box, int64_t i, const StoredChunk& stored, char* out, ChunkDecoder& decoder) const;

  const ArrayMap& map_;
  const hid_t dataset_;
  const int descriptor_;
  const h5::Where& where_;
  const uint64_t file_size_;
};

}  // namespace moonhalo::io
