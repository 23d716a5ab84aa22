// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/array_map.h"

namespace moonhalo::io {

/// Finds where the chunks of an array are stored, and brings their bytes. Calls may come from several threads.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  /// The places of these chunks, given by their numbers along every dim. ValueError where what says so is damaged.
  virtual std::vector<StoredChunk> find(const std::vector<std::vector<int64_t>>& chunks,
                                        const h5::Where& where) const = 0;
  /// The bytes of a chunk that was written, into space for all of them. "", or what is damaged.
  virtual std::string load(const std::vector<int64_t>& chunk, const StoredChunk& stored, char* out,
                           const h5::Where& where) const = 0;
};

/// Chunks of an HDF5 file, found by HDF5, which one call at a time may use, and read beside it.
class H5Chunks final : public ChunkSource {
 public:
  /// `descriptor`: of the file that `dataset` is in. `map` must outlive it.
  H5Chunks(const ArrayMap& map, hid_t dataset, int descriptor, const h5::Where& where);
  std::vector<StoredChunk> find(const std::vector<std::vector<int64_t>>& chunks, const h5::Where& where) const override;
  std::string load(const std::vector<int64_t>& chunk, const StoredChunk& stored, char* out,
                   const h5::Where& where) const override;

 private:
  const ArrayMap& map_;
  const hid_t dataset_;
  const int descriptor_;
  const uint64_t file_size_;
};

/// ValueError that says what is damaged.
[[noreturn]] void refuse_damaged_chunk(const std::vector<int64_t>& chunk, const std::string& damage,
                                       const h5::Where& where);
/// "", or that a chunk is not in a file of that size.
std::string beyond_the_end(uint64_t file_size, const StoredChunk& stored);
/// Fills `out` from byte `offset` on; what is damaged, or "". RuntimeError where the system does not read.
std::string read_stored_bytes(int descriptor, uint64_t file_size, const StoredChunk& stored, char* out,
                              const h5::Where& where);
/// Size of an open file.
uint64_t file_size(int descriptor, const h5::Where& where);

}  // namespace moonhalo::io
