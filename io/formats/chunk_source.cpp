// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/chunk_source.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io {

uint64_t file_size(int descriptor, const h5::Where& where) {
  struct stat file {};
  TORCH_CHECK(fstat(descriptor, &file) == 0, where.to_string(), ": cannot read it\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  return static_cast<uint64_t>(file.st_size);
}

void refuse_damaged_chunk(const std::vector<int64_t>& chunk, const std::string& damage, const h5::Where& where) {
  TORCH_CHECK_VALUE(false, where.to_string(), ": chunk ", shape_string(chunk), " is damaged\n  have  ", damage,
                    "\n  fix   take another copy of the file, or write it again");
}

std::string beyond_the_end(uint64_t file_size, const StoredChunk& stored) {
  if (stored.offset <= file_size && stored.bytes <= file_size - stored.offset) return "";
  return "its " + std::to_string(stored.bytes) + " bytes at " + std::to_string(stored.offset) +
         " reach beyond the end of the file at " + std::to_string(file_size);
}

std::string read_stored_bytes(int descriptor, uint64_t file_size, const StoredChunk& stored, char* out,
                              const h5::Where& where) {
  if (std::string damage = beyond_the_end(file_size, stored); !damage.empty()) return damage;
  const int64_t got = read_into(descriptor, {{out, static_cast<int64_t>(stored.bytes)}}, stored.offset);
  TORCH_CHECK(got >= 0, where.to_string(), ": cannot read a chunk\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  if (static_cast<uint64_t>(got) == stored.bytes) return "";
  return "the file became shorter while its " + std::to_string(stored.bytes) + " bytes were read";
}

H5Chunks::H5Chunks(const ArrayMap& map, hid_t dataset, int descriptor, const h5::Where& where)
    : map_(map), dataset_(dataset), descriptor_(descriptor), file_size_(io::file_size(descriptor, where)) {}

std::vector<StoredChunk> H5Chunks::find(const std::vector<std::vector<int64_t>>& chunks, const h5::Where& where) const {
  std::vector<StoredChunk> found;
  for (const auto& chunk : chunks) {
    found.push_back(find_chunk(dataset_, map_, chunk, where));
    // Before there is space for them, which a damaged index may ask for without measure.
    const std::string damage = found.back().bytes > 0 ? beyond_the_end(file_size_, found.back()) : "";
    if (!damage.empty()) refuse_damaged_chunk(chunk, damage, where);
  }
  return found;
}

std::string H5Chunks::load(const std::vector<int64_t>&, const StoredChunk& stored, char* out,
                           const h5::Where& where) const {
  return read_stored_bytes(descriptor_, file_size_, stored, out, where);
}

}  // namespace moonhalo::io
