// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io {

/// A file that several ranks read or write at once, each where its own bytes are. `who` begins the messages. Errors
/// that the disk is the reason of are RuntimeError, others ValueError; both say why and what to do. Each rank opens the
/// file for itself; no function is collective.
class PositionedFile {
 public:
  /// A new file of `bytes` bytes, for which space is found on the disk at once where the file system can.
  static PositionedFile create(const std::string& who, const std::string& path, int64_t bytes);
  /// An existing file, to write or to read parts of it.
  static PositionedFile open_to_write(const std::string& who, const std::string& path);
  static PositionedFile open_to_read(const std::string& who, const std::string& path);
  PositionedFile(PositionedFile&& other) noexcept;
  ~PositionedFile();

  /// Writes or reads `bytes` bytes from the byte `offset` of the file on.
  void write_at(const void* data, int64_t bytes, int64_t offset);
  void read_at(void* data, int64_t bytes, int64_t offset) const;
  /// Bytes that are contiguous in the file, each straight to its place.
  void read_at(at::ArrayRef<ReadInto> parts, int64_t offset) const;
  /// fsync: returns when what this file was given is on the disk.
  void sync();

 private:
  PositionedFile(std::string who, std::string path, int flags);
  void check(bool good) const;

  std::string who_, path_;
  int descriptor_;
};

}  // namespace moonhalo::io
