// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/chunk_reader.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/io_stats.h"
#include "moonhalo/io/threads.h"

namespace moonhalo::io {

void ChunkReader::read(const ChunkGrid& grid, const Box& cells, char* out) const {
  const CellBox box(map_, grid, cells);
  if (box.count() == 0) return;
  std::vector<StoredChunk> stored;
  IoStats& stats = io_stats();
  for (int64_t i = 0; i < box.count(); ++i) {
    stored.push_back(find_chunk(dataset_, map_, box.chunk(i), where_));
    stats.stored += static_cast<int64_t>(stored.back().bytes);
    stats.chunks += stored.back().bytes > 0;
    if (stored.back().bytes > 0) stats.inflated += static_cast<int64_t>(map_.chunk_bytes());
  }
  in_threads<ChunkDecoder>(box.count(), [&](int64_t i, ChunkDecoder& decoder) {
    read_cell(box, i, stored[static_cast<size_t>(i)], out, decoder);
  });
}

void ChunkReader::read_cell(const CellBox& box, int64_t i, const StoredChunk& stored, char* out,
                            ChunkDecoder& decoder) const {
  auto [part, in_chunk, in_rows] = box.place(i);
  if (stored.bytes == 0) {  // never written: one row for all
    const auto row = static_cast<size_t>(part.count.back());
    char* bytes = decoder.stored(row * map_.element_size);
    for (size_t element = 0; element < row; ++element)
      std::memcpy(bytes + element * map_.element_size, map_.fill.data(), map_.element_size);
    part.from_strides.assign(part.count.size(), 0);
    part.from_strides.back() = static_cast<int64_t>(map_.element_size);
    part.drop_dense_dims();
    part.copy(bytes, out + in_rows);
    return;
  }
  const char* bytes = load(box.chunk(i), stored, decoder);
  part.drop_dense_dims();
  part.copy(bytes + in_chunk, out + in_rows);
}

uint64_t ChunkReader::size_of(int descriptor, const h5::Where& where) {
  struct stat file {};
  TORCH_CHECK(fstat(descriptor, &file) == 0, where.to_string(), ": cannot read it\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  return static_cast<uint64_t>(file.st_size);
}

const char* ChunkReader::load(const std::vector<int64_t>& chunk, const StoredChunk& stored,
                              ChunkDecoder& decoder) const {
  const auto check = [&](const std::string& damage) {
    TORCH_CHECK_VALUE(damage.empty(), where_.to_string(), ": chunk ", shape_string(chunk),
                      " is damaged\n  have  ", damage, "\n  fix   take another copy of the file, or write it again");
  };
  const std::string place = "its " + std::to_string(stored.bytes) + " bytes at " + std::to_string(stored.offset);
  const bool inside = stored.offset <= file_size_ && stored.bytes <= file_size_ - stored.offset;
  check(inside ? "" : place + " reach beyond the end of the file at " + std::to_string(file_size_));
  char* out = decoder.stored(stored.bytes);
  for (uint64_t done = 0; done < stored.bytes;) {
    const ssize_t got = pread(descriptor_, out + done, stored.bytes - done, static_cast<off_t>(stored.offset + done));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, where_.to_string(), ": cannot read chunk ", shape_string(chunk), "\n  have  ",
                std::strerror(errno), "\n  fix   check the disk, or copy the file again");
    check(got > 0 ? "" : place + " reach beyond the end of the file");
    done += static_cast<uint64_t>(got);
  }
  check(decoder.decode(map_.codecs, stored.skipped, map_.chunk_bytes()));
  if (map_.swapped) swap_bytes(decoder.data(), map_.element_size, map_.chunk_bytes() / map_.element_size);
  return decoder.data();
}

}  // namespace moonhalo::io
