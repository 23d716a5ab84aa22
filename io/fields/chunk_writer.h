// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/fields/chunk_reader.h"

namespace moonhalo::io {

/// A chunk as it goes into a file.
struct EncodedChunk {
  std::string bytes;
  uint32_t skipped = 0;  ///< codecs that were not applied to it, by bit
};

/// Encodes the chunks of some cells, in their order, in LibTorch's threads. `rows`: the cells' rows, dense. `before`:
/// by cell, the chunk that stands in the file, of which elements stay that the cell does not have; it is read through
/// `descriptor`. Elsewhere beyond the cell stands the fill value. ValueError where such a chunk is damaged.
std::vector<EncodedChunk> encode_cells(const ArrayMap& map, const CellBox& cells, const char* rows,
                                       const std::vector<StoredChunk>& before, int descriptor, const h5::Where& where);

/// Finds space in the file for a chunk of that size, in place of what was there, and returns its address. The bytes
/// are for the caller to write (FileState::PlacesOnly).
uint64_t place_chunk(hid_t dataset, const ArrayMap& map, const std::vector<int64_t>& chunk, uint64_t bytes,
                     uint32_t skipped, const h5::Where& where);

}  // namespace moonhalo::io
