// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "moonhalo/io/base/unfinished_file.h"

namespace moonhalo::io {

// Files whose writing either succeeds or leaves what was there. `who` begins the messages ("safetensors",
// "checkpoint.save").

/// A file that appears under its name only when it is complete and on disk: until finish() it is an UnfinishedFile. Of
/// several that write one path at a time the last to finish counts, whole.
class NewFile {
 public:
  /// ValueError when it cannot be made, with the reason.
  NewFile(std::string who, std::string path);
  /// Drops what was not finished.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// RuntimeError when the disk refuses it; the file is then to be dropped.
  void write(const void* data, size_t bytes);
  /// fsync, close, and the name.
  void finish();

 private:
  void check(bool good) const;

  const std::string who_, path_;
  UnfinishedFile unfinished_;
  bool finished_ = false;
};

/// fsync: the data of a file, or the names in a folder (a name given there outlives a power cut only then).
void store_on_disk(const std::string& who, const std::string& path);
/// Gives a file or folder another name, which an empty folder may have; also on disk.
void give_name(const std::string& who, const std::string& from, const std::string& to);
/// Exchanges the names of two folders in one step, also on disk. False where the file system cannot.
bool exchange_names(const std::string& who, const std::string& one, const std::string& other);

/// A whole file. ValueError, with the reason, when it cannot be read.
std::string read_file(const std::string& who, const std::string& path);

/// "\n  fix   free space ..." for the errno of something that could not be opened or written.
std::string disk_remedy(int error);

}  // namespace moonhalo::io
