// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io {

/// A file's lock (flock) while this process writes it: gone with the process, however that ends.
class FileLock {
 public:
  FileLock() = default;
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileLock() { release(); }
  void release() noexcept { close(); }
  /// As close(2), of nothing too.
  int close() noexcept;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct UnfinishedFile {
  std::string path;
  FileLock lock;
};

/// Makes PATH.unfinished-HOST-RANDOM, empty and locked, and removes those of PATH that dead writers of this host left:
/// no process holds their lock. Those of other hosts stay, since some network file systems lock within a host only.
/// Never follows a link, nor opens what another has made.
UnfinishedFile make_unfinished(const std::string& path, const h5::Where& where);
/// A name of that form, for a dry run, which makes no file.
std::string dry_unfinished_name(const std::string& path);
/// The same without an error: where the system refuses, the lock has no descriptor and errno says why.
UnfinishedFile try_unfinished(const std::string& path);

}  // namespace moonhalo::io
