// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <ctime>
#include <memory>
#include <optional>

#include "moonhalo/io/base/file_descriptor.h"
#include "moonhalo/io/formats/chunk_source.h"
#include "moonhalo/io/formats/folder_policy.h"

namespace moonhalo::io {

/// Chunks of a Zarr array: a file each, or parts of files that have an index of them (shards). One that was written
/// after this object was made is refused: it is none of the array that was opened.
class ZarrChunks final : public ChunkSource {
 public:
  struct Shards {
    std::vector<int64_t> chunks;  ///< of a shard along each dim
    bool index_at_end = true;
    bool index_swapped = false;  ///< big-endian
    bool index_has_sum = false;  ///< CRC-32C behind it
  };
  struct Layout {
    std::string folder;
    std::string prefix;    ///< of names: "c/" of version 3
    char separator = '.';  ///< between numbers
    uint64_t largest = 0;  ///< no chunk is stored in more bytes than this
    std::shared_ptr<const FolderReach> reach;
    std::optional<Shards> shards = {};
  };
  explicit ZarrChunks(Layout layout);

  std::vector<StoredChunk> find(const std::vector<std::vector<int64_t>>& chunks, const h5::Where& where) const override;
  std::string load(const std::vector<int64_t>& chunk, const StoredChunk& stored, char* out,
                   const h5::Where& where) const override;

 private:
  using Number = std::vector<int64_t>;  // of a chunk, or a shard, along each dim
  std::string file_of(const Number& number) const;
  Number shard_of(const Number& chunk) const;
  FileDescriptor open_chunk(const std::string& path, const h5::Where& where) const;
  void check_inside(const std::string& path, const h5::Where& where) const;
  StoredChunk find_file(const Number& chunk, const h5::Where& where) const;
  std::vector<StoredChunk> find_in_shard(const Number& shard, const std::vector<Number>& chunks,
                                         const h5::Where& where) const;
  void check_older(const std::string& path, const struct stat& found, const h5::Where& where) const;
  uint64_t size_of(int file, const std::string& path, const h5::Where& where) const;
  std::string read_index(int descriptor, uint64_t file_size, std::string& index, const h5::Where& where) const;

  const Layout layout_;
  const timespec made_;
};

}  // namespace moonhalo::io
