// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/io/base/file_descriptor.h"

namespace moonhalo::io {

/// An HDF5 file of a dry run, in memory: the bytes of a file on disk, if it began as a copy of one, and over them what
/// HDF5 has written. Elements that are not computed are not in it. Copies are independent of each other.
class DryFile {
 public:
  DryFile() = default;
  /// Begins as a copy of a file on disk. RuntimeError if it cannot be read.
  explicit DryFile(const std::string& path);

  uint64_t size() const { return size_; }
  void resize(uint64_t size) { size_ = size; }
  /// Fills `data`, with zeros behind the end. False if the disk refuses.
  bool read(void* data, size_t bytes, uint64_t offset) const;
  /// False if the disk refuses what is beside the bytes.
  bool write(const void* data, size_t bytes, uint64_t offset);
  /// The file that it began as, if these bytes are still as there; else -1.
  int origin_of(uint64_t offset, size_t bytes) const;

 private:
  static constexpr uint64_t kPageBytes = 4096;
  char* page(uint64_t number);  // null: errno says why

  std::shared_ptr<const FileDescriptor> origin_;  // null: none
  std::map<uint64_t, std::vector<char>> pages_;   // that were written
  uint64_t size_ = 0;
};

}  // namespace moonhalo::io
