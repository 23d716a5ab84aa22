// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/chunk_writer.h"

#include <c10/util/Exception.h>

#include <cstring>

#include "moonhalo/io/base/threads.h"

namespace moonhalo::io {
namespace {

struct Coders {  // of one thread
  ChunkEncoder encoder;
  ChunkDecoder decoder;
};

void fill(const ArrayMap& map, char* chunk) {
  for (size_t at = 0; at < map.chunk_bytes(); at += map.element_size)
    std::memcpy(chunk + at, map.fill.data(), map.element_size);
}

}  // namespace

std::vector<EncodedChunk> encode_cells(const ArrayMap& map, const CellBox& cells, const char* rows,
                                       const std::vector<StoredChunk>& before, int descriptor, const h5::Where& where) {
  const H5Chunks source(map, H5I_INVALID_HID, descriptor, where);
  const ChunkReader reader(map, source, where);
  std::vector<EncodedChunk> chunks(static_cast<size_t>(cells.count()));
  in_threads<Coders>(cells.count(), [&](int64_t i, Coders& coders) {
    const StoredChunk& old = before[static_cast<size_t>(i)];
    char* chunk = coders.encoder.chunk(map.chunk_bytes());
    auto [part, in_chunk, in_rows] = cells.place(i);
    if (old.bytes > 0) {
      std::memcpy(chunk, reader.load(cells.chunk(i), old, coders.decoder), map.chunk_bytes());
    } else if (part.count != map.chunk) {
      fill(map, chunk);
    }
    std::swap(part.from_strides, part.to_strides);
    part.drop_dense_dims();
    part.copy(rows + in_rows, chunk + in_chunk);
    if (map.swapped) swap_bytes(chunk, map.element_size, map.chunk_bytes() / map.element_size);
    const uint32_t skipped = coders.encoder.encode(map.codecs);
    chunks[static_cast<size_t>(i)] = {coders.encoder.encoded(), skipped};
  });
  return chunks;
}

uint64_t place_chunk(hid_t dataset, const ArrayMap& map, const std::vector<int64_t>& chunk, uint64_t bytes,
                     uint32_t skipped, const h5::Where& where) {
  const std::unique_ptr<char[]> unwritten(new char[bytes]);
  std::vector<hsize_t> corner(chunk.size());
  for (size_t dim = 0; dim < chunk.size(); ++dim) corner[dim] = static_cast<hsize_t>(chunk[dim] * map.chunk[dim]);
  h5::checked(where, "find space for a chunk",
              [&] { return H5Dwrite_chunk(dataset, H5P_DEFAULT, skipped, corner.data(), bytes, unwritten.get()); });
  const StoredChunk placed = find_chunk(dataset, map, chunk, where);
  TORCH_INTERNAL_ASSERT(placed.bytes == bytes && placed.skipped == skipped, "the chunk that was placed");
  return placed.offset;
}

}  // namespace moonhalo::io
