// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/chunk_reader.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <new>

#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/base/threads.h"

namespace moonhalo::io {

void ChunkReader::read(const ChunkGrid& grid, const Box& cells, char* out) const {
  const CellBox box(map_, grid, cells);
  if (box.count() == 0) return;
  check_fits_memory(where_, map_.chunk, static_cast<double>(map_.element_size));
  std::vector<std::vector<int64_t>> chunks;
  for (int64_t i = 0; i < box.count(); ++i) chunks.push_back(box.chunk(i));
  const std::vector<StoredChunk> stored = source_.find(chunks, where_);
  IoStats& stats = io_stats();
  for (const StoredChunk& one : stored) {
    stats.stored += static_cast<int64_t>(one.bytes);
    stats.chunks += one.bytes > 0;
    if (one.bytes > 0) stats.inflated += static_cast<int64_t>(map_.chunk_bytes());
  }
  try {
    in_threads<ChunkDecoder>(box.count(), [&](int64_t i, ChunkDecoder& decoder) {
      read_cell(box, i, stored[static_cast<size_t>(i)], out, decoder);
    });
  } catch (const std::bad_alloc&) {
    refuse_memory(where_, map_.chunk, static_cast<double>(map_.element_size));
  }
}

void ChunkReader::read_cell(const CellBox& box, int64_t i, const StoredChunk& stored, char* out,
                            ChunkDecoder& decoder) const {
  auto [part, in_chunk, in_rows] = box.place(i);
  if (stored.bytes == 0) {  // never written: one row for all
    const auto row = part.count.empty() ? size_t{1} : static_cast<size_t>(part.count.back());
    char* bytes = decoder.stored(row * map_.element_size);
    for (size_t element = 0; element < row; ++element)
      std::memcpy(bytes + element * map_.element_size, map_.fill.data(), map_.element_size);
    part.from_strides.assign(part.count.size(), 0);
    if (!part.count.empty()) part.from_strides.back() = static_cast<int64_t>(map_.element_size);
    part.drop_dense_dims();
    part.copy(bytes, out + in_rows);
    return;
  }
  part.drop_dense_dims();
  if (part.count.empty() && part.run == map_.chunk_bytes()) {  // all of it, and nothing between
    load(box.chunk(i), stored, decoder, out + in_rows);
    return;
  }
  const char* bytes = load(box.chunk(i), stored, decoder);
  part.copy(bytes + in_chunk, out + in_rows);
}

const char* ChunkReader::load(const std::vector<int64_t>& chunk, const StoredChunk& stored, ChunkDecoder& decoder,
                              char* target) const {
  std::string damage = source_.load(chunk, stored, decoder.stored(stored.bytes), where_);
  if (damage.empty()) damage = decoder.decode(map_.codecs, stored.skipped, map_.chunk_bytes(), target);
  if (!damage.empty()) refuse_damaged_chunk(chunk, damage, where_);
  const size_t number_size = map_.element_size / map_.parts;
  char* const bytes = target ? target : decoder.data();
  if (map_.swapped) swap_bytes(bytes, number_size, map_.chunk_bytes() / number_size);
  return bytes;
}

}  // namespace moonhalo::io
